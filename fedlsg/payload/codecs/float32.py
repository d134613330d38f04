"""Four bytes a value: exact."""

import torch

from fedlsg.payload.values.floats import FloatCodec

CODEC = FloatCodec(name="float32", wire_id=1, bytes_each=4, exact=True, dtype=torch.float32)
