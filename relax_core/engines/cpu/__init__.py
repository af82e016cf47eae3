"""What SGLang lacks on a machine without a CUDA device, for the engine's processes only.

Guarantee: nothing of SGLang is changed unless ``install`` is called, and ``relax_core.engines.serve`` calls it in the
processes of an engine when torch sees no CUDA device, and nowhere else.

SGLang's wheel expects CUDA builds beside it. These stand in for them, each a drop-in of the same meaning:

* ``torchvision``: operator names, so that the index's CUDA build imports beside a CPU torch (SGLang needs its imports).
* ``kernels``: the package ``sgl_kernel``; the one function that the text path calls, in torch.
* ``sampling``: seeded sampling without a CUDA kernel, and SGLang's seeds allowed with the torch_native attention.
* ``attention``: one attention call a layer for all sequences that decode, in place of a Python loop over them.
* ``processes``: the engine's processes forked from its server, not started anew.
* ``memory``: no collection of Python's garbage in the middle of a weight sync.
* ``weights``: SGLang's comparison of weights without a copy to a GPU.
"""

from relax_core.engines.cpu.standin import install

__all__ = ["install"]
