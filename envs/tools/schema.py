"""From a function's signature and docstring to a JSON schema of its arguments, and from arguments to its parameters."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Optional

from toolstep.envs.tools.check import prepare
from toolstep.envs.tools.docstring import Documentation, read_docstring
from toolstep.envs.tools.errors import ToolSchemaError
from toolstep.envs.tools.inline import inline
from toolstep.envs.tools.problems import MismatchError
from toolstep.envs.tools.refused import problems_of

if TYPE_CHECKING:
    from pydantic import BaseModel

Kind = inspect._ParameterKind
EMPTY = inspect.Parameter.empty
MAX_KEPT = 1024  # signatures
_KEPT: dict[tuple[Any, ...], FunctionSignature] = {}


class FunctionSignature:
    """The parameters of one function as a model sees them.

    `schema` is the JSON schema of the arguments ($defs inlined, no titles, no additional properties); `description` is
    the docstring's text.  `bind` validates with pydantic; `spread` turns validated arguments into a Python call.
    `skip_first` leaves out the first parameter: the `self` of a method that is not bound yet.

    Raises ToolSchemaError for a function whose signature cannot be read or expressed.
    """

    def __init__(self, function: Callable[..., Any], *, skip_first: bool = False) -> None:
        self._where = f"{getattr(function, '__module__', '?')}.{_name_of(function)}"
        self.parameters = _parameters(function, self._where, skip_first)
        documentation = _documentation(function)
        self.description = documentation.text
        self._model = self._build_model(_annotations(function), documentation)
        self.schema = self._build_schema()

    def _build_model(self, annotations: Mapping[str, Any], documentation: Documentation) -> type[BaseModel]:
        from pydantic import ConfigDict, create_model

        fields: dict[str, Any] = {}
        for index, parameter in enumerate(self.parameters):
            annotation = annotations.get(parameter.name, Any)
            if isinstance(annotation, str):
                raise ToolSchemaError(
                    f"{self._where}: the annotation {annotation!r} of parameter {parameter.name!r} "
                    "cannot be resolved; define the type at the top of the module"
                )
            description = documentation.parameters.get(parameter.name)
            # Synthetic field names: a parameter may be called `_x`, `copy`, `json` or `model_config`.
            fields[f"p{index}"] = _field(parameter, annotation, description)
        try:
            return create_model(
                "Arguments",
                __config__=ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=False),
                **fields,
            )
        except Exception as error:
            raise ToolSchemaError(f"{self._where}: {self._blame(fields, error)}") from error

    def _build_schema(self) -> dict[str, Any]:
        try:
            raw = self._model.model_json_schema(schema_generator=_generator())
        except Exception as error:
            raise ToolSchemaError(f"{self._where}: no JSON schema for its parameters: {_first_line(error)}") from error
        schema = inline(raw)
        schema.pop("description", None)
        schema.setdefault("properties", {})
        schema["additionalProperties"] = False
        return schema

    def _blame(self, fields: Mapping[str, Any], error: Exception) -> str:
        """Name the parameter whose type pydantic refuses; it only names the type."""
        from pydantic import create_model

        for parameter, definition in zip(self.parameters, fields.values(), strict=True):
            try:
                create_model("Argument", value=definition)
            except Exception as one:
                reason = _first_line(one)
                return f"parameter {parameter.name!r} has a type that JSON arguments cannot fill: {reason}"
        return _first_line(error)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validated values of the parameters that were given; the function's own defaults stand for the others.

        Raises MismatchError.
        """
        from pydantic import ValidationError

        prepared, problems = prepare(dict(arguments), self.schema)
        try:
            model = self._model.model_validate(prepared)
        except ValidationError as error:
            told = {problem.path: problem for problem in problems_of(error, prepared, self.schema)}
            raise MismatchError([*({p.path: p for p in problems} | told).values()]) from None
        if problems:
            raise MismatchError(problems)
        given = model.model_fields_set
        bound: dict[str, Any] = {}
        for index, parameter in enumerate(self.parameters):
            field = f"p{index}"
            if field in given or (_pydantic_default(parameter) and not _variadic(parameter)):
                bound[parameter.name] = getattr(model, field)
        return bound

    def spread(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the call `function(*args, **kwargs)` for bound `arguments`."""
        rest = dict(arguments)
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        star = next((p.name for p in self.parameters if p.kind is Kind.VAR_POSITIONAL), None)
        all_positional = bool(star is not None and rest.get(star))
        last = max(
            (i for i, p in enumerate(self.parameters) if p.kind is Kind.POSITIONAL_ONLY and p.name in rest),
            default=-1,
        )
        for index, parameter in enumerate(self.parameters):
            name = parameter.name
            if parameter.kind is Kind.VAR_POSITIONAL:
                positional.extend(rest.pop(name, ()))
            elif parameter.kind is Kind.VAR_KEYWORD:
                extra = dict(rest.pop(name, {}))
            elif parameter.kind is not Kind.KEYWORD_ONLY and (index <= last or all_positional):
                # One before it is needed to reach a later position, given or not.
                if name in rest or parameter.default is not EMPTY:
                    positional.append(rest.pop(name, parameter.default))
            elif name in rest:
                keywords[name] = rest.pop(name)
        clash = sorted(extra.keys() & keywords.keys())
        if clash:
            raise TypeError(f"argument {clash[0]!r} is given twice")
        return positional, {**keywords, **extra, **rest}


def signature_of(function: Callable[..., Any], *, skip_first: bool = False) -> FunctionSignature:
    """`FunctionSignature(function)`, kept for functions that differ in their closures only.

    Task sets make their tools anew for each episode, and a signature costs milliseconds.
    """
    key = _key(function)
    if key is None:
        return FunctionSignature(function, skip_first=skip_first)
    key = (*key, skip_first)
    found = _KEPT.get(key)
    if found is None:
        if len(_KEPT) >= MAX_KEPT:
            _KEPT.clear()
        found = _KEPT[key] = FunctionSignature(function, skip_first=skip_first)
    return found


def _key(function: Callable[..., Any]) -> tuple[Any, ...] | None:
    """Everything that a signature depends on, for plain functions and bound methods with simple defaults."""
    plain: Any = function.__func__ if inspect.ismethod(function) else function
    if not inspect.isfunction(plain) or hasattr(plain, "__wrapped__") or hasattr(plain, "__signature__"):
        return None
    defaults = (*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values())
    if not all(value is None or type(value) in (str, int, float, bool) for value in defaults):
        return None
    hints = tuple(plain.__annotations__.items())
    key = (
        plain.__code__, plain.__module__, plain.__qualname__, plain.__doc__, inspect.ismethod(function),
        tuple((type(value), value) for value in defaults), tuple(plain.__kwdefaults__ or ()), hints,
    )  # fmt: skip
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _parameters(function: Callable[..., Any], where: str, skip_first: bool) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ToolSchemaError(f"{where} has no signature that Python can read ({error}); wrap it in a def") from None
    fixed = function.keywords if isinstance(function, functools.partial) else {}
    return [p for p in (found[1:] if skip_first else found) if p.name not in fixed]


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations with strings resolved; one that cannot be stays a string."""
    target: Any = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = type(target).__call__
    elif isinstance(target, type):
        target = inspect.getattr_static(target, "__init__")
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:
        plain = inspect.unwrap(target)
        module = getattr(plain, "__globals__", {})
        found: dict[str, Any] = {}
        for name, annotation in getattr(plain, "__annotations__", {}).items():
            try:
                holder = type("Holder", (), {"__annotations__": {name: annotation}})
                found.update(typing.get_type_hints(holder, globalns=dict(module), include_extras=True))
            except Exception:
                found[name] = annotation
        return found


def _documentation(function: Callable[..., Any]) -> Documentation:
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target) and not isinstance(target, type):
        # An object with `__call__`: its own words first, not those of `object`.
        return read_docstring(type(target).__call__.__doc__ or type(target).__doc__)
    return read_docstring(inspect.getdoc(target))


def _field(parameter: inspect.Parameter, annotation: Any, description: str | None) -> Any:
    """The pydantic field of one parameter: its annotation, and its default if it has one."""
    from pydantic import Field
    from pydantic.fields import FieldInfo

    default: Any = parameter.default
    metadata = getattr(annotation, "__metadata__", ())
    words = [m for m in metadata if isinstance(m, str)]
    told = [m for m in (*metadata, default) if isinstance(m, FieldInfo)]
    if parameter.kind is Kind.VAR_POSITIONAL:
        annotation, default = list[annotation], ()
    elif parameter.kind is Kind.VAR_KEYWORD:
        annotation, default = dict[str, annotation], {}
    elif default is None and not _accepts_none(annotation):
        annotation = Optional[annotation]  # `x: str = None` means that None may be given  # noqa: UP045
    given: dict[str, Any] = {"alias": parameter.name}
    text = words[0] if words else description
    if text and not any(info.description for info in told):
        given["description"] = text
    annotation = Annotated[annotation, Field(**given)]
    return annotation if default is EMPTY else (annotation, default)


def _accepts_none(annotation: Any) -> bool:
    if annotation is Any or annotation is None or annotation is type(None):
        return True
    if typing.get_origin(annotation) is Annotated:
        return _accepts_none(typing.get_args(annotation)[0])
    return any(argument is type(None) for argument in typing.get_args(annotation))


def _variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (Kind.VAR_POSITIONAL, Kind.VAR_KEYWORD)


def _pydantic_default(parameter: inspect.Parameter) -> bool:
    """Whether only pydantic knows the default: Python has none, or a `Field(...)` in its place."""
    return parameter.default is EMPTY or type(parameter.default).__name__ == "FieldInfo"


@functools.cache
def _generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def model_schema(self, schema: Any) -> Any:
            """A model that says nothing of further fields would drop them: a misspelt one would go unnoticed."""
            made = super().model_schema(schema)
            config, fields = schema["cls"].model_config, schema["cls"].model_fields.values()
            named = all(f.validation_alias is None or isinstance(f.validation_alias, str) for f in fields)
            free = {"extra", "populate_by_name", "validate_by_name"} & config.keys()
            if "properties" in made and named and not free:
                made["additionalProperties"] = False
            return made

        def emit_warning(self, kind: Any, detail: str) -> None:
            """A default that JSON cannot show (a sentinel, an open file) is left out without a word."""

    return Generator


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
