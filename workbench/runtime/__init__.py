"""The parts around the core that make it fast and keep it from hanging."""
