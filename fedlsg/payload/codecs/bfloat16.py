"""Two bytes a value: eight significant bits, the range of float32."""

import torch

from fedlsg.payload.codecs.float32 import FloatCodec

CODEC = FloatCodec(name="bfloat16", wire_id=3, bytes_each=2, dtype=torch.bfloat16)
