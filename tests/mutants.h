// mutants.h - finds what orders a kernel's accesses (fences, waits, arrivals, barriers, commits) in
// its preprocessed PTX, and takes one of them away.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

// One way to damage a kernel: text[begin, end) becomes `replacement`, filled up with spaces, so
// that the text keeps its length and every other line its number.
struct Mutant {
  size_t begin = 0, end = 0;
  std::string replacement; // "" drops the statement
  std::string file;        // source, from the line markers
  int line = 0;
  int nth = 0;             // of the mutants at this line, from 1
  int repeat = 0;          // of the same statement at this line, from 1 (a macro may hold several)
  std::string statement;   // as it stands in the text
  std::string guard;       // "@p ", or ""
  std::string what;        // "dropped", "passes at once", ...
};

std::vector<Mutant> find_mutants(const std::string &text);
// The mutant that shows whether the statement is executed at all: it traps.
Mutant trap_at(const Mutant &);
void apply(const Mutant &, char *text);

// A line of tests/mutate/equivalent.txt, a mutant that changes nothing:
//     kernel pattern | file | in the source line | in the statement, #n
// A source line is followed by " > " and the next one.
struct Equivalent {
  std::string kernel, file, source, statement;
  int repeat; // 0: any
  bool used = false;
};
std::vector<Equivalent> read_equivalents();
// The line that speaks of this mutant of this kernel, or null.
Equivalent *find_equivalent(std::vector<Equivalent> &all, const std::string &kernel,
                            const Mutant &m);
