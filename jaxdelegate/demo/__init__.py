"""The demo: sample tasks, their networks, generated pictures, and the page that shows them."""
