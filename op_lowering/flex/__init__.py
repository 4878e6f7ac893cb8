"""TensorFlow's operators, which models hold as custom operators named Flex and the name."""
