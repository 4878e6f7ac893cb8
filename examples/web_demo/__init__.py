"""The web demo: a network, a picture and several engines, compared on a page in a browser."""
