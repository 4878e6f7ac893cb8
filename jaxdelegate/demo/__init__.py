"""What `jaxdelegate demo` shows: sample tasks, their networks, pictures and drawings."""
