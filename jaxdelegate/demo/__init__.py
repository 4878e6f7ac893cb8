"""The demo: MobileNet v1 on XLA, compared with the numpy reference."""
