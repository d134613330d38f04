"""Was this example in the data? Likelihood ratios, loss threshold, matched filter."""
