// mutants.cpp - see mutants.h.
#include "mutants.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {

struct Statement {
  size_t begin, end; // from its guard to its semicolon
  std::string file;
  int line;
  std::string guard, opcode;
  std::vector<std::string> operands;
};

struct Label {
  std::string name;
  size_t before; // number of statements in front of it
};

bool starts(const std::string &text, const char *prefix) {
  return text.compare(0, std::strlen(prefix), prefix) == 0;
}

std::string trimmed(const std::string &s) {
  const size_t first = s.find_first_not_of(" \t\n"), last = s.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

std::string one_line(const std::string &s) {
  std::string out;
  for (const char c : s)
    if (!std::isspace(static_cast<unsigned char>(c))) out += c;
    else if (!out.empty() && out.back() != ' ') out += ' ';
  return trimmed(out);
}

// Splits preprocessed PTX into statements and labels; directives are skipped.
class Scanner {
 public:
  explicit Scanner(const std::string &text) : text_(text) { scan(); }
  std::vector<Statement> statements;
  std::vector<Label> labels;

 private:
  void scan() {
    while (at_ < text_.size() && text_[at_]) {
      const char c = text_[at_];
      if (c == '#' && (at_ == 0 || text_[at_ - 1] == '\n')) marker();
      else if (std::strchr(" \t\n{};", c)) step();
      else if (c == '.') directive();
      else if (!label()) statement();
    }
  }

  void step() { line_ += text_[at_++] == '\n'; }

  void marker() { // # 12 "file" flags
    const size_t end = text_.find('\n', at_), quote = text_.find('"', at_);
    line_ = std::atoi(text_.c_str() + at_ + 1) - 1;
    if (quote < end) file_ = text_.substr(quote + 1, text_.find('"', quote + 1) - quote - 1);
    at_ = end == std::string::npos ? text_.size() : end;
  }

  // To its semicolon, or to the brace that opens a body; an initialiser's braces belong to it.
  void directive() {
    bool value = false;
    while (at_ < text_.size() && text_[at_] != ';' && (value || text_[at_] != '{')) {
      value |= text_[at_] == '=';
      if (text_[at_] == '\n' && at_ + 1 < text_.size() && text_[at_ + 1] == '#') step(), marker();
      else step();
    }
  }

  bool label() {
    size_t end = at_;
    const auto word = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
    };
    while (end < text_.size() && word(text_[end])) ++end;
    if (end == at_ || text_[end] != ':' || text_[end + 1] == ':') return false;
    labels.push_back({text_.substr(at_, end - at_), statements.size()});
    at_ = end + 1;
    return true;
  }

  void statement() {
    Statement s{at_, text_.find(';', at_), file_, line_, "", "", {}};
    if (s.end == std::string::npos) s.end = text_.size() - 1;
    ++s.end;
    std::string body = text_.substr(at_, s.end - at_ - 1);
    while (at_ < s.end) step();
    if (body[0] == '@') {
      const size_t space = body.find_first_of(" \t\n");
      s.guard = body.substr(0, space);
      body = trimmed(body.substr(space));
    }
    const size_t space = body.find_first_of(" \t\n");
    s.opcode = body.substr(0, space);
    if (space != std::string::npos) split_operands(body.substr(space), s.operands);
    statements.push_back(s);
  }

  static void split_operands(const std::string &text, std::vector<std::string> &out) {
    int depth = 0;
    std::string one;
    for (const char c : text) {
      if (c == '[' || c == '{' || c == '(') ++depth;
      if (c == ']' || c == '}' || c == ')') --depth;
      if (c == ',' && depth == 0) out.push_back(trimmed(one)), one.clear();
      else one += c;
    }
    out.push_back(trimmed(one));
  }

  const std::string &text_;
  std::string file_;
  size_t at_ = 0;
  int line_ = 1;
};

class Finder {
 public:
  explicit Finder(const std::string &text) : text_(text), code_(text) {}

  std::vector<Mutant> run() {
    for (at_ = 0; at_ < code_.statements.size(); ++at_) consider();
    return found_;
  }

 private:
  const Statement &now() const { return code_.statements[at_]; }

  void consider() {
    const Statement &s = now();
    const std::string &op = s.opcode;
    static const char *const orders[] = {
        "fence", "membar", "wgmma.fence", "wgmma.wait_group", "wgmma.commit_group",
        "cp.async.wait_", "cp.async.commit_group", "cp.async.mbarrier.arrive",
        "cp.async.bulk.wait_group", "cp.async.bulk.commit_group", "mbarrier.arrive",
        "mbarrier.expect_tx", "bar.", "barrier.", "griddepcontrol.wait"};
    for (const char *prefix : orders)
      if (starts(op, prefix)) {
        add(s, "", "dropped");
        break;
      }
    if (starts(op, "mbarrier.try_wait") || starts(op, "mbarrier.test_wait"))
      add(s, "setp.eq.u32 " + s.operands[0] + ", 0, 0;", "passes at once");
    if (starts(op, "mbarrier.arrive.expect_tx")) add(s, without_bytes(s), "expects no bytes");
    if (starts(op, "ld.") || starts(op, "st.") || starts(op, "red.") || starts(op, "atom."))
      memory_order(s);
  }

  // mbarrier.arrive.expect_tx.rest state, [bar], bytes  ->  mbarrier.arrive.rest state, [bar]
  static std::string without_bytes(const Statement &s) {
    std::string text = s.guard.empty() ? "" : s.guard + " ";
    text += "mbarrier.arrive" + s.opcode.substr(std::strlen("mbarrier.arrive.expect_tx"));
    return text + " " + s.operands[0] + ", " + s.operands[1] + ";";
  }

  // Acquires and releases in global memory: weakened, and the loop round an acquire left at once.
  void memory_order(const Statement &s) {
    for (const char *order : {".acquire", ".release", ".acq_rel"}) {
      const size_t at = s.opcode.find(order);
      if (at == std::string::npos) continue;
      std::string text = text_.substr(s.begin, s.end - s.begin);
      text.replace(text.find(order), std::strlen(order), ".relaxed");
      add(s, text, "relaxed");
    }
    if (!starts(s.opcode, "ld.acquire")) return;
    for (size_t next = at_ + 1; next < code_.statements.size() && next < at_ + 8; ++next) {
      const Statement &branch = code_.statements[next];
      if (!starts(branch.opcode, "bra")) continue;
      for (const Label &label : code_.labels)
        if (label.name == branch.operands[0] && label.before <= at_ && label.before + 8 > at_) {
          add(branch, "", "spin loop left at once");
          return;
        }
    }
  }

  void add(const Statement &s, const std::string &replacement, const char *what) {
    const std::string text = text_.substr(s.begin, s.end - s.begin);
    const size_t lines = size_t(std::count(text.begin(), text.end(), '\n'));
    if (replacement.size() + lines > text.size()) return;
    Mutant m;
    m.begin = s.begin;
    m.end = s.end;
    m.replacement = replacement;
    m.file = s.file;
    m.line = s.line;
    m.nth = ++count_[s.file + ":" + std::to_string(s.line)];
    m.statement = one_line(text);
    m.repeat = ++count_[m.file + ":" + std::to_string(m.line) + m.statement + what];
    m.guard = s.guard.empty() ? "" : s.guard + " ";
    m.what = what;
    found_.push_back(m);
  }

  const std::string &text_;
  Scanner code_;
  size_t at_ = 0;
  std::map<std::string, int> count_;
  std::vector<Mutant> found_;
};

} // namespace

std::vector<Mutant> find_mutants(const std::string &text) { return Finder(text).run(); }

Mutant trap_at(const Mutant &m) {
  Mutant trap = m;
  trap.replacement = m.guard + "trap;";
  return trap;
}

void apply(const Mutant &m, char *text) {
  std::string all = m.replacement;
  for (size_t i = m.begin; i < m.end; ++i)
    if (text[i] == '\n') all += '\n';
  all.resize(m.end - m.begin, ' ');
  std::memcpy(text + m.begin, all.data(), all.size());
}
