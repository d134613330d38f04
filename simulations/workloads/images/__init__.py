"""Image classification: published data sets, any of the hub, and the digits of scikit-learn."""
