"""The exercises of lesson 20: layers cut across ranks, and stages of a pipeline."""
