"""What is legal and unwise for inference: one function a rule, each with the page that explains it."""
