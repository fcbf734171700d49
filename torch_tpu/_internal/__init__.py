"""The published product's internal names, for code that uses them. New code: torch.tpu."""
