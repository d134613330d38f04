"""What codecs are made of: the base class, public dither, an entropy coder, and the common grid of a secure sum."""
