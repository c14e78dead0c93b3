#!/bin/sh
# Says in one sentence what to install when Python 3.11+ or Java 17+ is missing.
case "$(uname -s)" in
    Darwin) python="brew install python@3.12"; java="brew install openjdk@17" ;;
    Linux)
        if command -v apt-get >/dev/null 2>&1; then
            python="sudo apt-get install python3 python3-venv (Debian 12, Ubuntu 24.04 or later)"; java="sudo apt-get install openjdk-17-jre-headless"
        elif command -v dnf >/dev/null 2>&1; then python="sudo dnf install python3.12"; java="sudo dnf install java-17-openjdk-headless"
        else python="Python 3.11 to 3.13 from your distribution"; java="a Java 17 runtime from your distribution"; fi ;;
    *) python="Python 3.11 to 3.13 inside WSL2"; java="a Java 17 runtime inside WSL2" ;;
esac
[ -n "$1" ] || { echo "Python 3.11 to 3.13 is needed and was not found: $python" >&2; exit 1; }
"$1" -c 'import ensurepip, venv' 2>/dev/null || { echo "The venv module of $1 is missing: $python" >&2; exit 1; }
program=java
[ -n "$JAVA_HOME" ] && program="$JAVA_HOME/bin/java"
version=$("$program" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
[ "${version:-0}" -ge 17 ] 2>/dev/null || { echo "Java 17 or later is needed, found ${version:-none}: $java" >&2; exit 1; }
