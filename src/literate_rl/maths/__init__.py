"""Mathematics, tensors in and tensors out: errors, returns, targets, their kernels."""
