#!/usr/bin/env bash
# Guards the rooms: what the top level holds, and that includes follow the arrows
#   protocol <- hub/base <- {hub/model, hub/registry};   hub/model <- hub/engine;
#   hub/engine/kernels sees protocol and hub/base only, and web-worker sees it;
#   hub/engine/{expert,span}_backend.h <- hub/dispatch;   {hub/model, hub/engine} <- hub/api;
#   hub/engine <- {hub/foresight, hub/draft, hub/state}, which only commands see;
#   {hub/base, hub/model/strict_json} <- hub/fetch, which only commands see;
#   all of these <- hub/net <- {hub/options, hub/commands, hub/main};   {protocol, hub/engine/kernels} <- web-worker.
#   web-worker/gpu <- web-worker/decoder;   {decoder, hub/model/package} <- web-worker/package;
#   {decoder, web-worker} <- web-worker/spans <- web-worker/{native, browser};
#   {decoder, hub/engine} <- web-worker/processor, which computes a whole model on a processor;
#   all of these <- {hub/commands/gpu, web-worker/local}, which link them.
#   Inside hub/model: strict_json <- tokenizer <- jinja <- chat_template, which see protocol besides and nothing else,
#   and which web-worker/local sees, too;   package <- pack, and only commands see pack.
#   hub/route sees nothing, and only web-worker/local sees it.
#   Inside hub/engine: {sampler, draw} see tokens alone, and web-worker/local sees them, too, as it sees
#   hub/draft/repetition and hub/engine/{draft_budget, draft_rates}, which see tokens and hub/base, and
#   hub/engine/state_slots, which sees delta_rule.
#   Inside hub/net: http sees nothing of the hub around it.
#   Everywhere: no circle of includes among what lies side by side in a folder; a source and its header are one file,
#   and a sub-folder with all that it holds is one.
#   A room that has folders keeps at most 40 sources beside them. A relative link of a Markdown page names a file.
#   usage: scripts/check_layout.sh      prints what is wrong, exit 1 if anything is
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
case "${1:-}" in -h|--help) sed -n '2,20p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;; esac
bad=0
complain() { echo "check_layout: $*"; bad=1; }

allowed_top=" CMakeLists.txt hub web-worker wgsl static protocol tests bench scripts README.md ARCHITECTURE.md LICENSE "
for entry in $(git ls-files | cut -d/ -f1 | sort -u); do
  case "$entry" in .*) continue ;; esac
  case "$allowed_top" in *" $entry "*) ;; *) complain "$entry does not belong at the top level" ;; esac
done

# Includes against the arrows: `room` says where a file lives, `sees` what a room may include, itself too.
git grep -nE '^#include "' -- 'protocol/*' 'hub/*' 'web-worker/*' | awk -F: '
  function room(path) {
    if (path ~ /^protocol\//) return "protocol"
    if (path ~ /^hub\/base\//) return "base"
    if (path ~ /^hub\/model\/(strict_json|json_fields)\./) return "strict_json"
    if (path ~ /^hub\/model\/tokenizer\//) return "tokenizer"
    if (path ~ /^hub\/model\/jinja\//) return "jinja"
    if (path ~ /^hub\/model\/package\//) return "package"
    if (path ~ /^hub\/model\/pack\//) return "pack"
    if (path ~ /^hub\/model\/chat_template/) return "chat_template"
    if (path ~ /^hub\/model\//) return "model"
    if (path ~ /^hub\/registry\//) return "registry"
    if (path ~ /^hub\/engine\/(expert|span)_backend\.h$/) return "backend"
    if (path ~ /^hub\/engine\/kernels\//) return "kernels"
    if (path ~ /^hub\/engine\/(sampler|draw|draw_noise)\./) return "sampler"
    if (path ~ /^hub\/engine\/draft_(budget|rates)\./) return "draft_rules"
    if (path ~ /^hub\/draft\/repetition\./) return "draft_rules"
    if (path ~ /^hub\/engine\/state_slots\./) return "state_slots"
    if (path ~ /^hub\/engine\//) return "engine"
    if (path ~ /^hub\/foresight\//) return "foresight"
    if (path ~ /^hub\/draft\//) return "draft"
    if (path ~ /^hub\/state\//) return "state"
    if (path ~ /^hub\/fetch\//) return "fetch"
    if (path ~ /^hub\/route\//) return "route"
    if (path ~ /^hub\/dispatch\//) return "dispatch"
    if (path ~ /^hub\/api\//) return "api"
    if (path ~ /^hub\/net\/http\//) return "http"
    if (path ~ /^hub\/net\//) return "net"
    if (path ~ /^hub\/commands\/gpu\//) return "hub_gpu"
    if (path ~ /^hub\//) return "main"
    if (path ~ /^web-worker\/gpu\//) return "gpu"
    if (path ~ /^web-worker\/decoder\//) return "gpu_decoder"
    if (path ~ /^web-worker\/package\//) return "gpu_package"
    if (path ~ /^web-worker\/processor\//) return "processor"
    if (path ~ /^web-worker\/local\//) return "local"
    if (path ~ /^web-worker\/spans\//) return "spans"
    if (path ~ /^web-worker\/native\//) return "native"
    if (path ~ /^web-worker\/browser\//) return "tab"
    if (path ~ /^web-worker\//) return "worker"
    return "none"
  }
  BEGIN {
    text = " protocol strict_json tokenizer jinja chat_template "
    model = text "base model package "
    sees["protocol"] = " protocol "
    sees["base"] = " protocol base "
    sees["strict_json"] = " protocol strict_json "
    sees["tokenizer"] = " protocol strict_json tokenizer "
    sees["jinja"] = sees["tokenizer"] "jinja "
    sees["chat_template"] = text
    sees["model"] = " protocol base strict_json model "
    sees["package"] = sees["model"] "package "
    sees["pack"] = model "pack "
    sees["registry"] = " protocol base registry "
    sees["backend"] = " protocol base model backend "
    sees["kernels"] = " protocol base kernels "
    sees["sampler"] = " protocol tokenizer sampler "
    sees["draft_rules"] = " protocol base tokenizer draft_rules "
    sees["state_slots"] = " protocol state_slots engine "
    sees["engine"] = model "backend kernels sampler draft_rules state_slots engine "
    sees["foresight"] = model "backend kernels engine foresight "
    sees["state"] = model "backend kernels sampler engine state "
    sees["draft"] = model "backend kernels sampler draft_rules engine draft "
    sees["fetch"] = " protocol base strict_json fetch "
    sees["route"] = " route "
    sees["dispatch"] = " protocol base backend dispatch "
    sees["api"] = model "backend kernels sampler engine api "
    sees["http"] = " protocol base api http "
    sees["net"] = model "registry backend kernels sampler engine dispatch api http net "
    sees["hub_gpu"] = model "backend kernels sampler state_slots engine gpu gpu_decoder gpu_package hub_gpu "
    sees["main"] = sees["net"] "pack foresight draft state fetch main hub_gpu "
    sees["gpu"] = " protocol gpu "
    sees["gpu_decoder"] = " protocol gpu gpu_decoder "
    sees["worker"] = " protocol kernels gpu worker "
    sees["spans"] = " protocol gpu gpu_decoder worker spans "
    sees["native"] = sees["worker"] "spans native "
    sees["tab"] = sees["worker"] "spans tab "
    sees["gpu_package"] = " protocol model package gpu_decoder gpu_package "
    sees["processor"] = sees["engine"] "gpu_decoder processor "
    sees["local"] = text "model package sampler draft_rules state_slots route gpu gpu_decoder gpu_package processor "
    sees["local"] = sees["local"] "local "
  }
  {
    target = $3; sub(/^#include "/, "", target); sub(/".*/, "", target)
    if (target !~ /\//) next                      # generated
    from = room($1); to = room(target)
    if (from == "none" || to == "none") next
    if (index(sees[from], " " to " ") == 0) {
      print "check_layout: " $1 ":" $2 ": " from " may not include " target " (" to ")"
      wrong = 1
    }
  }
  END { exit wrong }' || bad=1

# Circles: an include joins two neighbours in the folder that holds both ends. A circle of files in different folders is
# one of the neighbours that hold them, too.
git grep -nE '^#include "' -- 'protocol/*' 'hub/*' 'web-worker/*' 'tests/*' 'bench/*' | awk -F: '
  function reaches(from, to,    todo, seen, count, next_, at) {
    todo[count = 1] = from
    while (count > 0) {
      at = todo[count--]
      if (at == to) return 1
      if (at in seen) continue
      seen[at] = 1
      for (next_ in alive) if ((at, next_) in where) todo[++count] = next_
    }
    return 0
  }
  function name(parts, length_, depth,    i, path) {   # the neighbour at this depth
    path = parts[1]
    for (i = 2; i <= depth; ++i) path = path "/" parts[i]
    if (depth < length_) return path "/"
    sub(/\.(cpp|h)$/, "", path)
    return path
  }
  {
    target = $3; sub(/^#include "/, "", target); sub(/".*/, "", target)
    if (target !~ /\//) next                      # generated
    from_length = split($1, from, "/"); to_length = split(target, to, "/")
    for (depth = 1; from[depth] == to[depth] && depth < from_length && depth < to_length; ++depth) {}
    a = name(from, from_length, depth); b = name(to, to_length, depth)
    if (depth == 1 || a == b) next                # between hub and web-worker the arrows of rooms decide
    if (!((a, b) in where)) where[a, b] = $1 ":" $2 ": " a " -> " b
    alive[a] = alive[b] = 1
  }
  END {
    do {   # whoever includes nobody that is left, or is included by none, is in no circle
      shrank = 0
      split("", gives); split("", takes)
      for (edge in where) {
        split(edge, ends, SUBSEP)
        if (!(ends[1] in alive) || !(ends[2] in alive)) { delete where[edge]; continue }
        gives[ends[1]] = takes[ends[2]] = 1
      }
      for (node in alive) if (!(node in gives) || !(node in takes)) { delete alive[node]; shrank = 1 }
    } while (shrank)
    for (edge in where) {
      split(edge, ends, SUBSEP)
      if (!reaches(ends[2], ends[1])) continue
      print "check_layout: " where[edge] ": part of a circle of includes"
      wrong = 1
    }
    exit wrong
  }' | sort || bad=1

while IFS= read -r file; do
  case "$file" in
    hub/net/http/asio.h|hub/net/http/asio_impl.cpp|web-worker/native/asio.h|web-worker/native/beast.h) ;;
    *) complain "$file includes Boost; the doors are hub/net/http/asio.h and web-worker/native/{asio,beast}.h" ;;
  esac
done < <(git grep -lE '#include <boost/' -- 'hub/*' 'protocol/*' 'web-worker/*')
while IFS= read -r file; do complain "$file includes sqlite; SQL lives in hub/registry"; done \
  < <(git grep -lE '#include <sqlite3' -- ':!hub/registry/*' ':!tests/*' 'hub/*' 'protocol/*' 'web-worker/*')
while IFS= read -r file; do complain "$file reads files or threads; protocol has no I/O and no threads"; done \
  < <(git grep -lE '#include <(fstream|thread|mutex|chrono|filesystem|iostream)>' -- 'protocol/*')
# Highway's -inl headers are read once per target: they have toggle guards instead.
while IFS= read -r file; do complain "$file lacks #pragma once"; done \
  < <(git ls-files '*.h' ':!*-inl.h' | xargs -r grep -L '#pragma once')
# Rooms that were too large to read as one list.
for folder in hub/dispatch hub/foresight hub/commands hub/options hub/api hub/net web-worker; do
  count=$(git ls-files -- "$folder" | grep -cE "^$folder/[^/]+\.(cpp|h|js|mjs)$" || true)
  [ "$count" -le 40 ] || complain "$folder has $count sources beside its folders, at most 40: name a folder for some"
done

# Links of pages, from the folder that the page is in.
while IFS=: read -r page link; do
  link=${link#](}
  link=${link%%[)#]*}
  case "$link" in ''|http*|mailto:*) continue ;; esac
  [ -e "$(dirname "$page")/$link" ] || complain "$page links to $link, which is not there"
done < <(git grep -oE '\]\([^) ]+\)' -- '*.md')

exit $bad
