# lineinfo.awk - preprocessed PTX with its lines made visible to profilers (make LINEINFO=1)
#
# One instruction a line, each under a .loc of the line of ptx/*.ptx that it comes from, which the
# preprocessor's markers tell: a macro's instructions belong to the line that uses it.  ptxas
# -lineinfo then gives every machine instruction both: that source line, and its line of this text.
# root: the folder that the markers' file names are relative to.

function number_of(file) {
  if (!(file in number)) {
    number[file] = ++files
    path[files] = file ~ /^\// ? file : root "/" file
  }
  return number[file]
}
function depth_of(text) { return gsub(/{/, "", text) - gsub(/}/, "", text) }

/^# [0-9]+ "/ {
  line = $2
  split($0, quoted, "\"")
  file = quoted[2]
  next
}
{
  count = split($0, statements, /;/)
  for (i = 1; i <= count; i++) {
    text = statements[i] (i < count ? ";" : "")
    gsub(/^[ \t]+|[ \t]+$/, "", text)
    # Braces and labels in front of it.
    while (depth > 0 && match(text, /^([{}]|[A-Za-z_$][A-Za-z0-9_$]*:)[ \t]*/)) {
      before = substr(text, 1, RLENGTH)
      text = substr(text, RLENGTH + 1)
      depth += depth_of(before)
      print before
    }
    if (text == "") continue
    # An instruction begins with its name or a predicate; its own braces close on the same line.
    if (depth > 0 && text ~ /^[@a-z]/) print ".loc " number_of(file) " " line " 0"
    depth += depth_of(text)
    print text
  }
  line++
}
END { for (n = 1; n <= files; n++) print ".file " n " \"" path[n] "\"" }
