// ptx_lexer.cpp - see ptx_lexer.h.
#include "ptx_lexer.h"

#include <algorithm>
#include <cctype>
#include <cstdarg>
#include <cstdlib>

namespace emu {

std::string strf(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  char buf[2048];
  vsnprintf(buf, sizeof buf, fmt, ap);
  va_end(ap);
  return buf;
}

namespace {

struct TypeName { const char *name; Ty ty; };
const TypeName kTypes[] = {
    {"pred", Ty::Pred}, {"b8", Ty::B8}, {"u8", Ty::U8}, {"s8", Ty::S8}, {"b16", Ty::B16},
    {"u16", Ty::U16}, {"s16", Ty::S16}, {"b32", Ty::B32}, {"u32", Ty::U32}, {"s32", Ty::S32},
    {"b64", Ty::B64}, {"u64", Ty::U64}, {"s64", Ty::S64}, {"b128", Ty::B128}, {"f16", Ty::F16},
    {"f16x2", Ty::F16x2}, {"bf16", Ty::BF16}, {"bf16x2", Ty::BF16x2}, {"f32", Ty::F32},
    {"f32x2", Ty::F32x2}, {"f64", Ty::F64}, {"tf32", Ty::TF32}, {"e4m3", Ty::E4M3},
    {"e5m2", Ty::E5M2}, {"e4m3x2", Ty::E4M3x2}, {"e5m2x2", Ty::E5M2x2}};

bool wordStart(char c) { return isalpha(u8(c)) || c == '_' || c == '$' || c == '%' || c == '.'; }
bool wordChar(char c) { return isalnum(u8(c)) || c == '_' || c == '$' || c == '%' || c == '.'; }

class Lexer {
 public:
  explicit Lexer(std::string_view t) : text_(t) { out_.files.push_back("<ptx>"); }

  TokenStream run() {
    while (skipBlanks()) token();
    push(Tok::End, pos_);
    return std::move(out_);
  }

 private:
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  Token &push(Tok kind, size_t start) {
    Token t;
    t.kind = kind;
    t.text = text_.substr(start, pos_ - start);
    t.loc = loc_;
    out_.tokens.push_back(t);
    return out_.tokens.back();
  }

  [[noreturn]] void fail(const std::string &what) {
    throw PtxError(strf("%s:%d: %s", out_.files[loc_.file].c_str(), loc_.line, what.c_str()));
  }

  // Skips white space, comments and line markers; false at the end of the text.
  bool skipBlanks() {
    for (;;) {
      char c = at(pos_);
      if (pos_ >= text_.size() || c == '\0') return false;
      if (c == '\n') {
        ++pos_;
        ++loc_.line;
        lineStart_ = true;
      } else if (isspace(u8(c))) {
        ++pos_;
      } else if (c == '/' && at(pos_ + 1) == '/') {
        while (pos_ < text_.size() && at(pos_) != '\n') ++pos_;
      } else if (c == '/' && at(pos_ + 1) == '*') {
        for (pos_ += 2; pos_ < text_.size() && !(at(pos_) == '*' && at(pos_ + 1) == '/'); ++pos_)
          if (at(pos_) == '\n') ++loc_.line;
        pos_ += 2;
      } else if (c == '#' && lineStart_) {
        lineMarker();
      } else {
        lineStart_ = false;
        return true;
      }
    }
  }

  // `# 12 "file.ptx" flags`: the *next* line is line 12 of that file.
  void lineMarker() {
    size_t end = std::min(text_.find('\n', pos_), text_.size());
    std::string s(text_.substr(pos_, end - pos_));
    pos_ = end;
    char *rest = nullptr;
    const char *digits = s.c_str() + 1;
    if (s.rfind("#line", 0) == 0) digits += 4;
    long line = strtol(digits, &rest, 10);
    if (rest == digits) return;  // some other directive: nothing to honour
    size_t q0 = s.find('"'), q1 = s.rfind('"');
    if (q0 != std::string::npos && q1 > q0) {
      std::string name = s.substr(q0 + 1, q1 - q0 - 1);
      auto it = std::find(out_.files.begin(), out_.files.end(), name);
      loc_.file = int(it - out_.files.begin());
      if (it == out_.files.end()) out_.files.push_back(name);
    }
    loc_.line = int(line) - 1;  // the newline that follows adds one
  }

  void token() {
    size_t start = pos_;
    char c = at(pos_);
    if (c == '"') {
      for (++pos_; pos_ < text_.size() && at(pos_) != '"'; ++pos_) {}
      ++pos_;
      push(Tok::String, start);
    } else if (isdigit(u8(c))) {
      number(start);
    } else if (wordStart(c) && !(c == '%' && !wordChar(at(pos_ + 1)))) {
      word(start);
    } else {
      static const char *two[] = {"<<", ">>", "==", "!=", "<=", ">=", "&&", "||"};
      ++pos_;
      for (const char *t : two)
        if (text_.substr(start, 2) == t) { ++pos_; break; }
      push(Tok::Punct, start);
    }
  }

  // A word may contain "::" (shared::cluster) but ends before a label's single ':'.
  void word(size_t start) {
    while (wordChar(at(pos_)) ||
           (at(pos_) == ':' && at(pos_ + 1) == ':' && isalpha(u8(at(pos_ + 2)))))
      pos_ += at(pos_) == ':' ? 2 : 1;
    push(Tok::Word, start);
  }

  void number(size_t start) {
    char k = at(pos_ + 1);
    if (at(pos_) == '0' && (k == 'f' || k == 'F' || k == 'd' || k == 'D') &&
        isxdigit(u8(at(pos_ + 2)))) {
      pos_ += 2;
      while (isxdigit(u8(at(pos_)))) ++pos_;
      bool f32 = k == 'f' || k == 'F';
      if (pos_ - start != (f32 ? 10 : 18)) fail("a hexadecimal float has 8 digits, a double 16");
      Token &t = push(f32 ? Tok::F32Bits : Tok::F64Bits, start);
      t.ival = strtoull(std::string(t.text.substr(2)).c_str(), nullptr, 16);
      return;
    }
    if (at(pos_) == '0' && (k == 'x' || k == 'X')) {
      pos_ += 2;
      while (isxdigit(u8(at(pos_)))) ++pos_;
    } else if (at(pos_) == '0' && (k == 'b' || k == 'B')) {
      pos_ += 2;
      while (at(pos_) == '0' || at(pos_) == '1') ++pos_;
    } else {
      while (isdigit(u8(at(pos_)))) ++pos_;
      bool exponent = at(pos_) == 'e' || at(pos_) == 'E';
      if (at(pos_) == '.' || exponent) return decimalFloat(start);
    }
    std::string s(text_.substr(start, pos_ - start));
    if (at(pos_) == 'U') ++pos_;
    if (isalpha(u8(at(pos_)))) fail("bad number '" + s + at(pos_) + "'");
    Token &t = push(Tok::Int, start);
    if (s.size() > 2 && (s[1] == 'b' || s[1] == 'B'))
      t.ival = strtoull(s.c_str() + 2, nullptr, 2);
    else
      t.ival = strtoull(s.c_str(), nullptr, 0);
  }

  void decimalFloat(size_t start) {
    while (isdigit(u8(at(pos_))) || at(pos_) == '.' || at(pos_) == 'e' || at(pos_) == 'E' ||
           ((at(pos_) == '+' || at(pos_) == '-') && (at(pos_ - 1) == 'e' || at(pos_ - 1) == 'E')))
      ++pos_;
    Token &t = push(Tok::Float, start);
    t.fval = strtod(std::string(t.text).c_str(), nullptr);
  }

  std::string_view text_;
  size_t pos_ = 0;
  Loc loc_{0, 1};
  bool lineStart_ = true;
  TokenStream out_;
};

}  // namespace

Ty typeFromName(std::string_view name) {
  for (const TypeName &t : kTypes)
    if (name == t.name) return t.ty;
  return Ty::None;
}

const char *nameOfType(Ty ty) {
  for (const TypeName &t : kTypes)
    if (t.ty == ty) return t.name;
  return "?";
}

TokenStream lex(std::string_view text) { return Lexer(text).run(); }

}  // namespace emu
