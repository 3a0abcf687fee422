"""Write a GGUF file's model again with all its matrices in 16 bit: the same values, so that formats can be compared.

python scripts/to_f16.py SMALL.gguf OUT.gguf        (needs the gguf package)
"""

import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

_KEPT_OUT = ("general.architecture", "general.file_type", "general.quantization_version")
_F16 = 1  # LLAMA_FTYPE_MOSTLY_F16


def main(source: Path, target: Path) -> int:
    reader = GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    writer = GGUFWriter(target, arch=str(fields["general.architecture"].contents()))
    for name, field in fields.items():
        if name in _KEPT_OUT:
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    writer.add_file_type(_F16)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        writer.add_tensor(tensor.name, values.astype(np.float32 if values.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
