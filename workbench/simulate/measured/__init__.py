"""What a step costs on machines that were measured."""
