
_r1_settings() {
    local typed="${COMP_LINE:0:COMP_POINT}"
    typed="${typed##*[[:space:]]}"
    if [[ "$typed" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
        local before="${COMP_LINE:0:COMP_POINT - ${#typed}}"
        local -a COMP_WORDS
        read -ra COMP_WORDS <<< "$before"
        local COMP_CWORD=${#COMP_WORDS[@]}
        COMP_WORDS+=("$typed")
        _clap_complete_r1 "$1" "$typed" "${COMP_WORDS[COMP_CWORD - 1]}"
        COMPREPLY=("${COMPREPLY[@]#"${typed%%=*}="}")
    else
        _clap_complete_r1 "$@"
    fi
}
complete -o nospace -o bashdefault -F _r1_settings r1
