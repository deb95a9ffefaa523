"""What the configuration of a `vllm` adapter may say. Pure, but for reading a key file."""

from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from iop_shared.errors import InvalidConfig, InvalidName, nearest
from iop_shared.ids import AdapterName, check_target
from iop_shared.private_files import read_secret

_Seconds = Annotated[float, Field(gt=0, le=86_400)]


class VllmSettings(BaseModel):
    """One OpenAI-compatible engine. All times in seconds.

    `base_url` may end in /v1 or not. `targets`: offer only these of the engine's models. `aliases`: more names,
    each for one of the engine's models. `first_byte_timeout_s` runs until the first event of a stream, or the
    whole answer of an embedding; it has room for a queue and a long prompt. `idle_timeout_s` runs between
    reads. Both are defaults: a run's own limits win. `health_path`: "" if the engine has none.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    base_url: str
    api_key: SecretStr | None = None
    api_key_file: str | None = None
    connect_timeout_s: _Seconds = 5.0
    first_byte_timeout_s: _Seconds = 300.0
    idle_timeout_s: _Seconds = 120.0
    probe_timeout_s: _Seconds = 3.0
    health_path: str = "/health"
    targets: list[str] | None = None
    aliases: dict[str, str] = {}

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            port_is_good = parts.port is None or parts.port > 0
        except ValueError:
            raise ValueError("is no URL; write for example http://127.0.0.1:8000") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_good:
            raise ValueError("is no http or https URL with a host; write for example http://127.0.0.1:8000")
        if "@" in parts.netloc:
            raise ValueError("has a user or password in it; use api_key or api_key_file instead")
        if parts.query or parts.fragment:
            raise ValueError("has a query or fragment; leave everything from ? or # away")
        return value.rstrip("/").removesuffix("/v1").rstrip("/")

    @field_validator("health_path")
    @classmethod
    def _check_health_path(cls, value: str) -> str:
        if value and not value.startswith("/"):
            raise ValueError('must be empty or begin with "/"')
        return value

    @field_validator("api_key_file")
    @classmethod
    def _check_api_key_file(cls, value: str | None) -> str | None:
        if value is not None and not Path(value).is_absolute():
            raise ValueError("must be an absolute path on the node's machine")
        return value

    @field_validator("targets", "aliases")
    @classmethod
    def _check_targets(cls, value: Any) -> Any:
        for name in value or ():
            try:
                check_target(name)
            except InvalidName as error:
                raise ValueError(f"has a name that cannot be used: {error}") from None
        return value

    @model_validator(mode="after")
    def _check_one_key(self) -> "VllmSettings":
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("api_key and api_key_file are both set; keep one of them")
        return self

    def read_api_key(self) -> str | None:
        """Returns the engine's key, from the file if one is named, or None.

        Raises:
            InvalidConfig: the file cannot be used (see `read_secret`), or the key is no header value.
        """
        if self.api_key_file is not None:
            key = read_secret(Path(self.api_key_file))
        elif self.api_key is not None:
            key = self.api_key.get_secret_value()
        else:
            return None
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            source = self.api_key_file or "api_key"
            raise InvalidConfig(source, ["holds no usable key: it must be printable ASCII without spaces"])
        return key


_SECRET: Final = frozenset({"api_key"})


def read_settings(name: AdapterName, settings: dict[str, Any]) -> VllmSettings:
    """Returns the checked settings.

    Raises:
        InvalidConfig: every problem in a sentence with key, value (secrets masked) and what is allowed.
    """
    try:
        return VllmSettings.model_validate(settings)
    except ValidationError as error:
        problems = [_sentence(dict(problem)) for problem in error.errors(include_url=False)]
        raise InvalidConfig(f"adapter {name}", problems) from None


def _sentence(problem: dict[str, Any]) -> str:
    key = ".".join(str(step) for step in problem["loc"])
    match problem["type"]:
        case "missing":
            return f'{key} is missing; write for example {key} = "http://127.0.0.1:8000"'
        case "extra_forbidden":
            return f"unknown key {key!r}: {nearest(key, list(VllmSettings.model_fields))}"
        case "value_error":
            message = str(problem["ctx"]["error"])
            return message if not key else f"{key} = {_shown(key, problem['input'])} {message}"
        case _:
            message = problem["msg"].removeprefix("Input ")
            return f"{key} = {_shown(key, problem['input'])} {message}"


def _shown(key: str, value: Any) -> str:
    if key.split(".")[0] in _SECRET:
        return "***"
    if isinstance(value, str) and "@" in value:  # a URL with credentials, most likely
        value = "***@" + value.rpartition("@")[2]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
