"""Scripts for Keras' ``fit``, and for TensorFlow with a loop of their own."""
