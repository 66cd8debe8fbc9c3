# For .ci/setup and .ci/setup-legacy, which source it: install with uv, or with pip, by pip's settings.
# They say which environment is meant: python and uv are the paths of the two in it.

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# uv is ten times as fast as pip; where it cannot be had, pip does the same from the same pins.
get_uv() {
    local pin
    [ ! -x "$uv" ] || return 0
    pin=$(dirname "$python")/uv.txt
    sed -n '/^uv==/,/[^\\]$/p' requirements.hashes >"$pin"
    "$python" -m pip install --quiet --constraint requirements.lock --require-hashes --requirement "$pin" ||
        say "no uv here: pip it is, which takes minutes"
}

# uv does not read pip's configuration. Whoever told pip of a mirror, a certificate or a folder of wheels means uv too.
# For each setting pip's own order holds: its environment variable, then its configuration files.
lend() { # SETTING UV_VARIABLE SEPARATOR: one setting of pip, unless uv was told itself
    local variable value
    variable=PIP_$(echo "$1" | tr a-z- A-Z_)
    value=${!variable-$("$python" -m pip config get "global.$1" 2>/dev/null || true)}
    value=$(echo $value | tr ' ' "$3") # unquoted: one word per entry, however they were separated
    [ -z "$value" ] || [ -n "${!2-}" ] || export "$2=$value"
}

lend_pip_settings() {
    [ -x "$uv" ] || return 0
    lend find-links UV_FIND_LINKS ,
    lend index-url UV_DEFAULT_INDEX ' '
    lend extra-index-url UV_INDEX ' '
    lend trusted-host UV_INSECURE_HOST ' '
    lend cert SSL_CERT_FILE ' '
    # pip takes the best version of all indexes, uv by default the best of the first that knows the name.
    [ -z "${UV_INDEX-}" ] || export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY-unsafe-best-match}"
}

install() { # the arguments that pip and uv have in common
    if [ -x "$uv" ]; then "$uv" pip install --python "$python" "$@"
    else "$python" -m pip install "$@"; fi
}
