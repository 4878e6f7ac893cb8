"""How a .tflite is read: a checked flatbuffer reader, and the tables that `model` is made of."""
