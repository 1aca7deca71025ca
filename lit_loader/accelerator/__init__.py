"""On the way to an accelerator: page-locked memory, and copies ahead of the step."""
