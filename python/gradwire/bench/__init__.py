"""What `gradwire bench` runs in Python: the rivals."""
