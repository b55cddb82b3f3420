"""Credentials for S3 from the AWS profile files, for where the environment holds none.

A profile with plain keys is read here. One that says how to get them (single sign-on, a role, a process) needs boto3, which
knows all of those ways: the extra `phalanx[aws]`.
"""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from phalanx.core.errors import SetupError

_INDIRECT: Final = (
    "sso_session",
    "sso_start_url",
    "role_arn",
    "credential_process",
    "credential_source",
    "web_identity_token_file",
)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile says. `options` are obstore's names; `provider` gives credentials that end and must be renewed."""

    options: Mapping[str, str]
    provider: Any = None


def profile_of(environ: Mapping[str, str], home: Path) -> Profile:
    """The profile that AWS_PROFILE names, else `default`; empty when there is none, or the environment holds keys itself.

    Raises SetupError for a file that cannot be read, a named profile that does not exist, and one that needs boto3 without it.
    """
    name = environ.get("AWS_PROFILE") or "default"
    secrets = _sections(Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials"))
    config = _sections(Path(environ.get("AWS_CONFIG_FILE") or home / ".aws/config"))
    known = {**config.get(name if name == "default" else f"profile {name}", {}), **secrets.get(name, {})}
    if not known and environ.get("AWS_PROFILE"):
        raise SetupError("AWS_PROFILE", name, "no such profile in ~/.aws/credentials or ~/.aws/config; name another, or unset it")
    options = _plain(known, environ)
    if environ.get("AWS_ACCESS_KEY_ID"):
        return Profile(options)
    if known.get("aws_access_key_id") and known.get("aws_secret_access_key"):
        keys = {"access_key_id": known["aws_access_key_id"], "secret_access_key": known["aws_secret_access_key"]}
        token = {"session_token": known["aws_session_token"]} if known.get("aws_session_token") else {}
        return Profile({**options, **keys, **token})
    if any(known.get(word) for word in _INDIRECT):
        return Profile(options, _boto3_provider(name))
    return Profile(options)


def _plain(known: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Region and endpoint, unless the environment, which comes first, has them."""
    options = {}
    if known.get("region") and not (environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")):
        options["region"] = known["region"]
    if known.get("endpoint_url") and not (environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT_URL_S3")):
        options["endpoint"] = known["endpoint_url"]
    return options


def _sections(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        why = getattr(error, "strerror", None) or type(error).__name__  # the parser's words would quote the line
        raise SetupError("AWS profile", str(path), f"cannot be read ({why}); mend it, or move it away") from error
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _boto3_provider(name: str) -> Any:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        fix = "gets its keys in a way that needs boto3: `pip install 'phalanx[aws]'`, or put the keys into the environment"
        raise SetupError("AWS_PROFILE", name, fix) from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except (BotoCoreError, ValueError) as error:
        raise SetupError("AWS_PROFILE", name, f"gives no credentials ({error}); sign in again, or name another") from error
