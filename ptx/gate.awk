# gate.awk - what must hold in the `ptxas -v` report of every kernel; called by the Makefile as
#   awk -v name=KERNEL -v registers=N -v exact=0|1 -f ptx/gate.awk REPORT
# ptxas itself fails on a spill (-warn-spills -Werror), but a serialised wgmma pipeline or an
# ignored setmaxnreg is only a note to it, with a success exit.  `exact`: the kernel shares out
# registers by setmaxnreg, so the count at launch must be the row's; otherwise the row's is the most
# it may use (another release of ptxas may need fewer).

function bad(why) { print "kernel " name ": " why > "/dev/stderr"; failed = 1 }

/C75[0-9][0-9]|setmaxnreg|Potential Performance Loss/ { bad($0) }
/bytes stack frame/ && $1 > 0 { bad("a stack frame: " $0) }
/bytes spill/ && $5 + $9 > 0  { bad("spills: " $0) }

match($0, /Used [0-9]+ registers/) {
  used = substr($0, RSTART + 5, RLENGTH - 15) + 0
  reported = 1
  if (used > registers || (exact && used != registers))
    bad("ptxas uses " used " registers a thread, its row of src/kernels.def says " registers)
}

END {
  if (!reported) bad("no register count in the report of ptxas")
  exit failed
}
