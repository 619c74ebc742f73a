// equivalents.cpp - the list of mutants that change nothing: see mutants.h.
#include <fnmatch.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "mutants.h"

namespace {

std::string trimmed(const std::string &s) {
  const size_t first = s.find_first_not_of(" \t"), last = s.find_last_not_of(" \t");
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

// "the line > the line after it"
std::string source_line(const std::string &path, int number) {
  std::ifstream file(path);
  std::string line, next;
  for (int i = 0; i < number; ++i) std::getline(file, line);
  std::getline(file, next);
  return trimmed(line) + " > " + trimmed(next);
}

} // namespace

std::vector<Equivalent> read_equivalents() {
  std::vector<Equivalent> all;
  std::ifstream file("tests/mutate/equivalent.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line[0] == ' ') continue; // reasons are for people
    std::istringstream fields(line);
    std::string f[4];
    for (std::string &field : f) std::getline(fields, field, '|');
    const size_t hash = f[3].find('#');
    const int repeat = hash == std::string::npos ? 0 : std::atoi(f[3].c_str() + hash + 1);
    all.push_back({trimmed(f[0]), trimmed(f[1]), trimmed(f[2]), trimmed(f[3].substr(0, hash)),
                   repeat});
  }
  return all;
}

Equivalent *find_equivalent(std::vector<Equivalent> &all, const std::string &kernel,
                            const Mutant &m) {
  const std::string source = source_line(m.file, m.line);
  for (Equivalent &e : all)
    if (fnmatch(e.kernel.c_str(), kernel.c_str(), 0) == 0 &&
        fnmatch(e.file.c_str(), m.file.c_str(), 0) == 0 &&
        source.find(e.source) != std::string::npos &&
        m.statement.find(e.statement) != std::string::npos && (!e.repeat || e.repeat == m.repeat))
      return &e;
  return nullptr;
}
