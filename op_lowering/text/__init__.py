"""SKIP_GRAM and parsing of tf.Example records."""
