"""Reading what a torch links, and saying which torch cannot be emulated for."""

import sys
from pathlib import Path

import pytest

from perfsuite.devices.emulated import library
from perfsuite.devices.emulated.elf import NotElf, read_needs
from perfsuite.devices.emulated.torch_build import TorchBuild
from perfsuite.errors import DeviceMissing


def torch_of(tmp_path, version):
    (tmp_path / "lib").mkdir()
    (tmp_path / "version.py").write_text(version)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda = None\n", "torch 2.13.0[+]cpu is a build without CUDA"),
        (
            "__version__ = '9.9'\ncuda: Optional[str] = '14.1'\n",
            "torch 9.9 was built for CUDA 14.1; the emulator knows CUDA 12 and 13",
        ),
        (
            "__version__ = '2.12.1'\ncuda: Optional[str] = '13.0'\n",
            "does not link libcudart.so as the emulator expects",
        ),
    ],
    ids=["no CUDA", "an unknown CUDA", "linked another way"],
)
def test_a_torch_that_cannot_be_emulated_for_is_named(version, words, tmp_path):
    """With what is wrong with it and what would do."""
    with pytest.raises(DeviceMissing, match=words):
        TorchBuild.from_folder(torch_of(tmp_path, version))


@pytest.mark.skipif(sys.platform != "linux", reason="needs an ELF file")
def test_needs_are_read_from_an_elf_file():
    """Python's own extension modules link the C library, by versions of its symbols."""
    import _ctypes

    needs = read_needs(Path(_ctypes.__file__))
    assert any(name.startswith("libc.so") for name in needs.libraries)
    assert any(
        library_.startswith("libc.so") and version.startswith("GLIBC")
        for library_, version in needs.symbols.values()
    )


def test_what_is_no_library_is_refused(tmp_path):
    """A text file, say."""
    (tmp_path / "text.so").write_text("INPUT(libother.so)")
    with pytest.raises(NotElf, match="no 64-bit ELF file"):
        read_needs(tmp_path / "text.so")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("cudaGraphAddNode", 801),
        ("cuMemCreate", 801),
        ("cublasSsyrk_v2", 15),
        ("cublasLtMatmul", 15),
        ("cudnnPoolingForward", 3000),
        ("cusparseSpMM", 10),
        ("cusparseLtInit", 10),
        ("cuFileRead", 5027),
    ],
)
def test_refusals_speak_each_library_s_language(name, code):
    """The number that its own header calls «not supported»."""
    assert f'int {name}(void) {{ return emu_refuse("{name}", {code}); }}' in library.refusals((name,))


def test_words_are_refused_with_words():
    """A caller prints what it gets: a number taken for an address would crash it."""
    assert "const char *ncclGetErrorString(void) { return words; }" in library.refusals(
        ("ncclGetErrorString",)
    )
