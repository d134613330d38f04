"""Two bytes a value: eleven significant bits, magnitudes up to 65504."""

import torch

from fedlsg.payload.codecs.float32 import FloatCodec

CODEC = FloatCodec(name="float16", wire_id=2, bytes_each=2, dtype=torch.float16)
