"""What makes a steady training step cheap."""
