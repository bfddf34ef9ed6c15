# The compiled module, bindings/python/module.cc. The package documents it.
from typing import Any

__version__: str

class Error(Exception):
    code: str

class Codec:
    @staticmethod
    def parse(spec: str) -> Codec: ...
    def spec(self) -> str: ...
    def name(self) -> str: ...
    def traits(self) -> tuple[bool, bool, bool, bool, bool]: ...
    def fit(self, x: Any) -> Codec: ...
    def max_frame_bytes(self, count: int) -> int: ...
    def encode(
        self, x: Any, seed: int, step: int, tensor: int, rank: int, first_element: int
    ) -> bytes: ...
    def equals(self, other: Codec) -> bool: ...

class Work:
    def wait(self) -> None: ...
    def done(self) -> bool: ...
    def statistics(
        self,
    ) -> tuple[int, int, float, list[tuple[int, float, float, float, float, float, int]]]: ...

class Communicator:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce(
        self,
        names: list[str],
        arrays: list[Any],
        ways: list[str | None],
        average: bool,
        measure_error: bool,
        exact_energies: bool,
        seed: int,
        step: int | None,
        timeout: float | None,
    ) -> Work: ...
    def register_layer(self, name: str, array: Any) -> None: ...
    def set_plan(self, source: str, given: str, from_step: int) -> None: ...
    def save_residuals(self) -> bytes: ...
    def load_residuals(self, saved: Any) -> None: ...
    def broadcast(
        self,
        names: list[str],
        arrays: list[Any],
        ways: list[str | None],
        root: int,
        measure_error: bool,
        exact_energies: bool,
        seed: int,
        step: int | None,
        timeout: float | None,
    ) -> Work: ...
    def reduce_scatter(
        self,
        names: list[str],
        arrays: list[Any],
        ways: list[str | None],
        average: bool,
        measure_error: bool,
        exact_energies: bool,
        seed: int,
        step: int | None,
        timeout: float | None,
    ) -> Work: ...
    def all_gather(
        self,
        names: list[str],
        arrays: list[Any],
        ways: list[str | None],
        measure_error: bool,
        exact_energies: bool,
        seed: int,
        step: int | None,
        timeout: float | None,
    ) -> Work: ...
    def barrier(self, timeout: float | None) -> Work: ...

def connect(
    rank: int,
    size: int,
    store: str,
    secret: str,
    encryption: str,
    certificate: str,
    private_key: str,
    authority: str,
    transport: str,
    algorithm: str,
    interface: str,
    port: int,
    timeout: float,
    lanes: int,
    threads: int,
    trace: str,
) -> Communicator: ...
def encode_many(
    codecs: list[Codec], arrays: list[Any], seed: int, step: int, tensor: int, rank: int
) -> bytes: ...
def decode(frame: Any, out: Any, segment: int | None, max_elements: int) -> Any: ...
def decode_add(frame: Any, out: Any, segment: int | None) -> None: ...
def inspect(frame: Any) -> list[tuple[str, str, int, int]]: ...
def random_bits(
    count: int, seed: int, step: int, tensor: int, rank: int, first_element: int
) -> Any: ...
def codecs() -> list[str]: ...
def isas() -> list[str]: ...
def isa() -> str: ...
def use_isa(name: str) -> None: ...
def configure_from_environment() -> None: ...
