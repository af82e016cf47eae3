# Scripts that are not known in full. Below each, after `#=`, the words, and after `#!` a line and a part of its note.

### a command
A=$(date)
python train.py --n a-$A
#= --n 'a-$(date)'
#! 1 `$(date)` is a command

### one that is not split
python train.py $(a b) "`c d`"
#= '$(a b)' '`c d`'
#! 1 `$(a b)`
#! 1 ``c d``

### an unset variable
python train.py --k ${K} "$Q"
#= --k ''
#! 1 `K` is not set
#! 1 `Q` is not set

### an unset array
python train.py ${K[@]} "${Q[@]}"
#=
#! 1 `K` is not set
#! 1 `Q` is not set

### arguments of the script
python train.py $1 "$@" ${2:-two} $#
#= '$1' two 0
#! 1 `$1` is an arg
#! 1 `$@` stands
#! 1 `$#` is

### the machine
python train.py $HOME/x ~/y
#= '$HOME/x' '~/y'
#! 1 `$HOME` is known only
#! 1 `~` in `~/y`

### a condition
A=1
if [ -d /x ]; then
A=2; B=3
fi
python train.py $A ${B}
#= 1 '${B}'
#! 2 `A` may have
#! 2 `B` is not known

### a condition of an array
A=(a)
if which x; then A+=(b); fi
python train.py ${A[@]}
#= a
#! 2 `A` may have

### a condition after &&
[ -f x ] && A=2
python train.py $A
#= '${A}'
#! 1 `A` is not known

### case
case $(uname) in
Linux) A=1 ;;
esac
python train.py $A
#= '${A}'
#! 1 `case` in lines 1 to 3

### for
for x in $(ls); do A+=($x); done
python train.py ${A[@]}
#= '${A}'
#! 1 `for` in line 1

### while
while read l; do A=$l; done < f
python train.py $A
#= '${A}'
#! 1 `while` in line 1

### read
read A < f
python train.py $A
#= '${A}'
#! 1 `read` takes its value from elsewhere

### arithmetic
N=$(nproc)
python train.py $((N * 2)) $((1 / 0))
#= '$((N * 2))' '$((1 / 0))'
#! 2 `$((N * 2))`
#! 2 `$((1 / 0))`

### a part of what is not known
A=$(pwd -P)
python train.py ${A##*.} ${A:0:2}
#= '${A##*.}' '${A:0:2}'
#! 1 `$(pwd -P)` is a command
#! 2 `${A##*.}` cannot be worked out
#! 2 `${A:0:2}` cannot be worked out

### its folder
A=$(find x)/a/b
python train.py ${A%/*} ${A##*/} $(dirname $A)
#= '$(find x)/a' b '$(find x)/a'
#! 1 `$(find x)`

### a blank at the end of a line
python train.py --a \ 
  --b 1
#= --a ' '
#! 1 One argument is a blank
#! 2 `--b` stands at the start

### a comment between the lines
python train.py --a \
# --b \
--c
#= --a
#! 3 `--c` stands at the start of a command

### files
python train.py data/*.jsonl
#= 'data/*.jsonl'
#! 1 is a pattern of files

### an endless loop
while true; do :; done
python train.py x
#= x
#! 1 goes on for too long

### process substitution
python train.py <(ls)
#= '<(ls)'
#! 1 `<(ls)` cannot be worked out
