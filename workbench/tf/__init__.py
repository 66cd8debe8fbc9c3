"""Tensors of TensorFlow, and verbs on them: what `keras/` and `tensorflow/` share."""
