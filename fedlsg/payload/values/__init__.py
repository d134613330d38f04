"""Parts of codecs: public dither, entropy coder, common grid."""
