{% autoescape false %}
#!/bin/sh
# The paper's tables and figures on {{ name }}, as `flatfold reproduce` measures them. {{ variable }} is the
# folder that holds OpenOOD's data and results, as in: {{ variable }}=/path/to/openood sh {{ name }}.sh
set -eu
: "${{ "{" }}{{ variable }}:?is not set: name the folder that holds the data and results of OpenOOD}"
{% set quoted = '"$(dirname "$0")/' ~ suite ~ '"' if suite.endswith(".toml") else suite %}
flatfold doctor {{ quoted }} --data "${{ variable }}"
flatfold reproduce {{ quoted }} --data "${{ variable }}" --out {{ out }} --device cuda --workers 8
flatfold paper {{ out }} --csv {{ out }}/comparison-with-paper.csv
{% endautoescape %}
