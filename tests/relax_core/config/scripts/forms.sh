# Scripts that are known in full. Below each, after `#=`, the words that `python train.py` is given, as bash has them.

### plain words
python train.py --lr 1e-6  --save	/a
#= --lr 1e-6 --save /a

### a comment
python train.py --lr 1 # --save /a
#= --lr 1

### no comment
python train.py --name a#b '#c'
#= --name 'a#b' '#c'

### continued lines
python train.py \
  --lr 1 \
  --save /a
#= --lr 1 --save /a

### a word over two lines
python train.py --na\
me
#= --name

### single quotes
python train.py 'a "b" $C \d'
#= 'a "b" $C \d'

### double quotes
python train.py "a 'b' \"c\" \$d \e"
#= 'a '"'"'b'"'"' "c" $d \e'

### quotes inside a word
python train.py --a='b c'"d e"f
#= '--a=b cd ef'

### nothing in quotes
python train.py '' ""
#= '' ''

### JSON
python train.py '{"actor": [1, 4]}' "{\"a\": 1}" 
#= '{"actor": [1, 4]}' '{"a": 1}'

### ANSI quotes
python train.py $'it\'s\ta\x41\u00e9' $'\101'
#= 'it'"'"'s	aAé' A

### escaped blanks
python train.py a\ b \$C
#= 'a b' '$C'

### redirections
python train.py --lr 1 > /dev/null 2>&1 --save /a
#= --lr 1 --save /a

### a pipe
python train.py --lr 1 2>&1 | cat
#= --lr 1

### the background
python train.py --lr 1 &
wait
#= --lr 1

### arithmetic
python train.py $((2*3)) $(( 4 * 512 + (1 << 3) )) $((7 / 2 % 2 ** 3)) $((-7 / 2)) $((010 + 0xf))
#= 6 2056 3 -3 23

### braces
python train.py {a,b}.jsonl {1..3} {01..3} x{,y} {a} '{a,b}' --r={1,2}
#= a.jsonl b.jsonl 1 2 3 01 02 03 x xy '{a}' '{a,b}' --r=1 --r=2

### a pattern without files
python train.py [0]*3+[1]*4 what?
#= '[0]*3+[1]*4' 'what?'

### dollars
python train.py $ a$ "$" $%
#= '$' 'a$' '$' '$%'

### variables
A=x; B=${A}y
python train.py $A ${B} "$A $B" '$A'
#= x xy 'x xy' '$A'

### splitting
A='a  b c'
python train.py $A "$A" -$A-
#= a b c 'a  b c' -a b c-

### splitting elsewhere
A=a,b,,c; IFS=,
python train.py $A "$A"
#= a b '' c a,b,,c

### an empty variable
A=
python train.py $A "$A" x$A
#= '' x

### no splitting in an assignment
A='a b'; B=$A; export C=$A
python train.py "$B" "$C"
#= 'a b' 'a b'

### defaults
A=; B=b
python train.py ${A:-x y} "${A:-x y}" ${A-z} ${B:-x} ${N:-${B}c} ${N-'d e'}
#= x y 'x y' b bc 'd e'

### defaults that stay
: ${A:=5} ${B=6}
python train.py $A $B
#= 5 6

### alternatives
A=a
python train.py ${A:+--x "y z"} ${B:+--w} ${A+v}
#= --x 'y z' v

### ends cut off
A=/a/b.c.d
python train.py ${A%.*} ${A%%.*} ${A#*/} ${A##*/} ${A%/*} ${A%z}
#= /a/b.c /a/b a/b.c.d b.c.d /a /a/b.c.d

### replacements
A=a-b-c
python train.py ${A/-/+} ${A//-/+} ${A//-} ${A/#a/x} ${A/%c/x} ${A//[ab]/_}
#= a+b-c a+b+c abc x-b-c a-b-x _-_-c

### parts of a text
A=abcdef
python train.py ${A:2} ${A:1:2} ${A: -2} ${A:0:-1} ${#A} ${A^} ${A^^} ${A,,}
#= cdef bc ef abcde 6 Abcdef ABCDEF abcdef

### a variable by its name
A=x; B=A
python train.py ${!B} ${!B:-y}
#= x x

### arrays
A=(
  --a 1
  # --b 2 )
  --c 'd e'  # f

)
python train.py "${A[@]}" ${A[@]} "${A[*]}"
#= --a 1 --c 'd e' --a 1 --c d e '--a 1 --c d e'

### empty arrays
A=()
B=( # --b
)
python train.py ${A[@]} "${B[@]}" x
#= x

### arrays that grow
A=(a)
A+=(b 'c d')
A[3]=e; A+=("${A[@]}")
python train.py "${A[@]}" ${#A[@]}
#= a b 'c d' e a b 'c d' e 8

### elements
declare -a A=(a b c); i=1
python train.py ${A[0]} ${A[i+1]} ${A[-1]} $A ${A[@]:1:1} ${A[@]/#/x} ${!A[@]}
#= a c c a b xa xb xc 0 1 2

### arrays by key
declare -A A=([small]=4 ['large one']=8); A[x]=1
python train.py ${A[small]} "${A[large one]}" ${A[$(echo x)]} ${#A[@]}
#= 4 8 1 3

### text that is added
A=a; A+=b; A+=${A}
python train.py $A
#= abab

### export
export A=1 B='x y'; declare -x C=3; readonly D=4
python train.py $A "$B" $C $D
#= 1 'x y' 3 4

### export expands before it sets
export A=1 B=$A
python train.py a$B
#= a

### for one command
A=1 B=2 python train.py $A
#=

### if
A=
if [ -z "$A" ]; then A=x; fi
if [ -n "$B" ]; then A=y; elif [[ $A == x* ]]; then A+=z; else A=w; fi
python train.py $A
#= xz

### tests of numbers
N=8
if [ $N -gt 4 -a "$N" != 9 ] && (( N % 2 == 0 )) && [[ N -eq 8 && ! ( $N < 5 ) ]]; then A=yes; fi
python train.py $A
#= yes

### tests of texts
A=fully_async
[[ $A =~ ^fully_(a|b) ]] && B=${BASH_REMATCH[1]}
[[ $A == *"async" ]] && B+=1
[[ $A = '*' ]] || B+=2
[ x$A = xa ] || B+=3
python train.py $B
#= a123

### and, or
[ -n "$N" ] && A=1 || A=2
[ -z "$N" ] && B=3 || B=4
! false && C=5
python train.py $A $B $C
#= 2 3 5

### case
V=fast-2
case "$V" in
  slow) A=1 ;;
  fast-?|quick) A=2; B=3 ;;
  *) A=4
esac
python train.py $A $B
#= 2 3

### for
for x in a 'b c' {1..2}; do
  [ $x = 2 ] && continue
  A+=(--x "$x")
done
python train.py "${A[@]}"
#= --x a --x 'b c' --x 1

### counting
for ((i=0; i<3; i++)); do A+=($((i*i))); done
while (( i > 1 )); do A+=($i); let i--; done
python train.py ${A[@]}
#= 0 1 4 3 2

### functions
f() { local A=in; B=$A; R+=("$1:$#"); shift; R+=("$@"); return 0; R=(); }
A=out
f a 'b c' && f d
python train.py $A $B "${R[@]}"
#= out in a:2 'b c' d:1

### a function that trains
function go {
  python train.py --x "$@"
}
go 1 '2 3'
#= --x 1 '2 3'

### a subshell
A=1
( A=2; B=3 )
{ C=4; }
python train.py $A ${B:-none} $C
#= 1 none 4

### outputs
A=$(echo a  b) B=`echo c`; f() { echo "<$1>"; }
python train.py $A "$B" $(f x) $(basename /a/b.sh .sh) $(dirname /a/b) $(printf '%02d-%s' 3 z)
#= a b c '<x>' b /a 03-z

### numbers in a row
python train.py --bs 1 2 $(seq 4 4 12)
#= --bs 1 2 4 8 12

### filters
D=0,1,4
N=$(echo $D | tr ',' '\n' | wc -l)
python train.py $((N)) $(echo Ab | tr '[:upper:]' '[:lower:]')
#= 3 ab

### here-documents
A=1
cat <<EOF
python train.py --no
EOF
B=$(cat <<EOF
{"a": "$A"}
EOF
)
C=$(cat <<-'END'
	$A
	END
)
python train.py "$B" "$C"
#= '{"a": "1"}' '$A'

### read
IFS=, read -r -a A <<< 'a,b c'; read X Y <<< '1 2 3'
python train.py "${A[@]}" $X "$Y"
#= a 'b c' 1 '2 3'

### printf into a variable
k=(0 1 1)
printf -v A '[%s]' "$(IFS=', '; echo "${k[*]}")"
python train.py $A
#= '[0,1,1]'

### a command in an array
C=(python train.py --x 'a b')
C+=(--y)
"${C[@]}" --z
#= --x 'a b' --y --z

### a command in a text
C='--x 1'
eval "python train.py $C '\$HOME'"
#= --x 1 '$HOME'

### arguments that are set
set -- a 'b c'
python train.py "$@" $# ${2} "${@:2}"
#= a 'b c' 2 b c 'b c'

### around the program
CUDA_VISIBLE_DEVICES=0 nohup torchrun train.py --lr 1
#= --lr 1
