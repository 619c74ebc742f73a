// ptx_parser.cpp - recursive descent over the tokens; see ptx_parser.h.
#include "ptx_parser.h"

#include <algorithm>

namespace emu {
namespace {

struct Scope {
  int parent = -1;
  std::map<std::string, int, std::less<>> regs;
  std::map<std::string, Variable *, std::less<>> vars;
  std::map<std::string, int, std::less<>> labels;
};

struct LabelUse { int stmt; int arg; int scope; };

class Parser {
 public:
  Parser(Module &m, TokenStream ts) : mod_(m), toks_(std::move(ts.tokens)) {
    mod_.files = std::move(ts.files);
    scopes_.push_back({});
  }

  void run() {
    while (peek().kind != Tok::End) topLevel();
  }

 private:
  // ---- tokens -------------------------------------------------------------------------------
  const Token &peek(int ahead = 0) const { return toks_[std::min(pos_ + ahead, toks_.size() - 1)]; }
  const Token &take() { return toks_[pos_ < toks_.size() - 1 ? pos_++ : pos_]; }
  bool accept(const char *s) {
    if (!peek().is(s) || peek().kind == Tok::End) return false;
    take();
    return true;
  }
  void expect(const char *s) {
    if (!accept(s)) fail(strf("expected '%s' before '%.*s'", s, int(peek().text.size()),
                              peek().text.data()));
  }
  [[noreturn]] void fail(const std::string &what) const { failAt(peek().loc, what); }
  [[noreturn]] void failAt(Loc l, const std::string &what) const {
    throw PtxError(mod_.where(l) + ": " + what);
  }
  std::string word() {
    if (peek().kind != Tok::Word) fail(strf("expected a name before '%.*s'",
                                            int(peek().text.size()), peek().text.data()));
    return std::string(take().text);
  }

  // ---- names --------------------------------------------------------------------------------
  int findReg(std::string_view n) const {
    for (int s = scope_; s >= 0; s = scopes_[s].parent)
      if (auto it = scopes_[s].regs.find(n); it != scopes_[s].regs.end()) return it->second;
    return -1;
  }
  Variable *findVar(std::string_view n) const {
    for (int s = scope_; s >= 0; s = scopes_[s].parent)
      if (auto it = scopes_[s].vars.find(n); it != scopes_[s].vars.end()) return it->second;
    return nullptr;
  }

  // ---- constant expressions -----------------------------------------------------------------
  // Integer constants with C operators; `name` (one variable) may appear once as the base.
  struct Value { s64 i = 0; double f = 0; Tok kind = Tok::Int; const Token *name = nullptr; };

  static int precedence(std::string_view op) {
    if (op == "*" || op == "/" || op == "%") return 10;
    if (op == "+" || op == "-") return 9;
    if (op == "<<" || op == ">>") return 8;
    if (op == "<" || op == ">" || op == "<=" || op == ">=") return 7;
    if (op == "==" || op == "!=") return 6;
    if (op == "&") return 5;
    if (op == "^") return 4;
    if (op == "|") return 3;
    if (op == "&&") return 2;
    if (op == "||") return 1;
    return 0;
  }

  s64 apply(std::string_view op, s64 a, s64 b) const {
    if (op == "*") return a * b;
    if (op == "/" || op == "%") {
      if (b == 0) fail("division by zero in a constant expression");
      return op == "/" ? a / b : a % b;
    }
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "<<") return s64(u64(a) << (b & 63));
    if (op == ">>") return a >> (b & 63);
    if (op == "<") return a < b;
    if (op == ">") return a > b;
    if (op == "<=") return a <= b;
    if (op == ">=") return a >= b;
    if (op == "==") return a == b;
    if (op == "!=") return a != b;
    if (op == "&") return a & b;
    if (op == "^") return a ^ b;
    if (op == "|") return a | b;
    if (op == "&&") return a && b;
    return a || b;
  }

  Value primary() {
    Value v;
    if (accept("(")) {
      if (peek().kind == Tok::Word && peek().text[0] == '.') {  // cast: (.u64) x
        Ty t = typeFromName(take().text.substr(1));
        expect(")");
        v = primary();
        if (bits(t) == 32) v.i = isSigned(t) ? s64(s32(v.i)) : s64(u32(v.i));
        return v;
      }
      v = expression(1);
      expect(")");
      return v;
    }
    if (accept("-")) {
      v = primary();
      v.i = -v.i;
      v.f = -v.f;
      if (v.kind == Tok::F32Bits) v.i = s64(u32(-v.i) ^ 0x80000000u);
      if (v.kind == Tok::F64Bits) v.i = s64(u64(-v.i) ^ (1ull << 63));
      return v;
    }
    if (accept("+")) return primary();
    if (accept("~")) { v = primary(); v.i = ~v.i; return v; }
    if (accept("!")) { v = primary(); v.i = !v.i; return v; }
    const Token &t = take();
    v.kind = t.kind;
    v.i = s64(t.ival);
    v.f = t.fval;
    if (t.kind == Tok::Word) { v.kind = Tok::Int; v.name = &t; return v; }
    if (t.kind == Tok::Int || t.kind == Tok::Float || t.kind == Tok::F32Bits ||
        t.kind == Tok::F64Bits) return v;
    --pos_;
    fail(strf("unexpected '%.*s' in an operand", int(t.text.size()), t.text.data()));
  }

  Value expression(int minPrec) {
    Value a = primary();
    for (;;) {
      // `p|q` of setp/shfl is handled by the caller, so '|' between two names stops here.
      std::string_view op = peek().text;
      int prec = peek().kind == Tok::Punct ? precedence(op) : 0;
      if (prec == 0 || prec < minPrec) break;
      if (op == "|" && a.name) break;
      take();
      Value b = expression(prec + 1);
      if (b.name && (a.name || op != "+")) fail("only one name may appear in an expression");
      const Token *name = a.name ? a.name : b.name;
      if (a.kind != Tok::Int || b.kind != Tok::Int) {
        double x = a.kind == Tok::Float ? a.f : double(a.i);
        double y = b.kind == Tok::Float ? b.f : double(b.i);
        if (a.kind > Tok::Float || b.kind > Tok::Float) fail("arithmetic on float bit patterns");
        a.f = op == "*" ? x * y : op == "/" ? x / y : op == "+" ? x + y : x - y;
        a.kind = Tok::Float;
      } else {
        a.i = apply(op, a.i, b.i);
      }
      a.name = name;
    }
    if (minPrec <= 1 && accept("?")) {
      Value t = expression(1);
      expect(":");
      Value e = expression(1);
      return a.i ? t : e;
    }
    return a;
  }

  s64 constant() {
    Value v = expression(1);
    if (v.name || v.kind != Tok::Int) fail("expected an integer constant");
    return v.i;
  }

  // ---- operands -----------------------------------------------------------------------------
  Arg operand() {
    Arg a;
    if (accept("{")) {
      a.kind = Arg::Vec;
      if (!accept("}")) {
        do a.elems.push_back(operand()); while (accept(","));
        expect("}");
      }
      return withPair(a);
    }
    if (accept("[")) {
      a.kind = Arg::Mem;
      Arg base = operand();
      if (base.kind == Arg::Reg) a.elems.push_back(base);
      else if (base.kind == Arg::Var) a.var = base.var;
      else if (base.kind != Arg::Int) fail("bad address");
      a.ival = base.ival;
      while (accept(",")) {
        if (a.elems.empty()) a.elems.push_back({});  // [0] stays the (constant) base
        a.elems.push_back(operand());
      }
      expect("]");
      return withPair(a);
    }
    if (peek().is("!") && peek(1).kind == Tok::Word) {
      take();
      a = operand();
      a.negate = true;
      return a;
    }
    if (peek().is("_") ) {
      take();
      a.kind = Arg::Sink;
      return withPair(a);
    }
    Value v = expression(1);
    if (v.name) return withPair(named(v));
    a.kind = v.kind == Tok::Int ? Arg::Int : v.kind == Tok::Float ? Arg::Float
             : v.kind == Tok::F32Bits ? Arg::F32Bits : Arg::F64Bits;
    a.ival = v.i;
    a.fval = v.f;
    return a;
  }

  Arg withPair(Arg a) {
    if (accept("|")) a.pair.push_back(operand());
    return a;
  }

  Arg named(const Value &v) {
    Arg a;
    std::string_view n = v.name->text;
    a.ival = v.i;
    if (int r = findReg(n); r >= 0) {
      a.kind = Arg::Reg;
      a.reg = r;
    } else if (Variable *var = findVar(n)) {
      a.kind = Arg::Var;
      a.var = var;
    } else if (n[0] == '%') {
      a.kind = Arg::Special;
      a.name = std::string(n);
    } else {
      a.kind = Arg::Label;
      a.name = std::string(n);
    }
    return a;
  }

  // ---- declarations -------------------------------------------------------------------------
  void topLevel() {
    if (accept(".version")) { mod_.version = std::string(take().text); return; }
    if (accept(".target")) {
      mod_.target = word();
      while (accept(",")) word();
      return;
    }
    if (accept(".address_size")) { take(); return; }
    if (accept(".file")) { skipLine(); return; }
    if (accept(".section")) {
      while (!peek().is("{")) take();
      skipBraces();
      return;
    }
    bool isExtern = false;
    while (peek().is(".visible") || peek().is(".extern") || peek().is(".weak") ||
           peek().is(".common"))
      isExtern |= take().is(".extern");
    if (accept(".entry")) return kernel();
    if (accept(".func")) {
      while (!peek().is("{") && !peek().is(";") && peek().kind != Tok::End) take();
      if (!accept(";")) skipBraces();
      return;
    }
    if (accept(";")) return;
    variable(isExtern, mod_.vars, nullptr);
  }

  void skipLine() {
    Loc l = peek().loc;
    while (peek().loc.line == l.line && peek().loc.file == l.file && peek().kind != Tok::End)
      take();
  }

  void skipBraces() {
    int depth = 0;
    do {
      if (peek().is("{")) ++depth;
      if (peek().is("}")) --depth;
      if (peek().kind == Tok::End) fail("missing '}'");
      take();
    } while (depth > 0);
  }

  static bool spaceFromWord(std::string_view w, Space *s) {
    if (w == ".global") *s = Space::Global;
    else if (w == ".shared") *s = Space::Shared;
    else if (w == ".const") *s = Space::Const;
    else if (w == ".local") *s = Space::Local;
    else if (w == ".param") *s = Space::Param;
    else return false;
    return true;
  }

  // `.shared .align 16 .b8 name[64] = {..}, name2;`
  void variable(bool isExtern, std::vector<std::unique_ptr<Variable>> &list, KernelAst *k) {
    Variable v;
    v.isExtern = isExtern;
    v.loc = peek().loc;
    if (!spaceFromWord(peek().text, &v.space))
      fail(strf("unknown directive '%.*s'", int(peek().text.size()), peek().text.data()));
    take();
    u32 vec = declType(&v);
    do {
      Variable one = v;
      one.name = word();
      declArray(&one, vec);
      if (accept("=")) initialiser(&one);
      place(&one, k);
      list.push_back(std::make_unique<Variable>(one));
      scopes_[scope_].vars[one.name] = list.back().get();
    } while (accept(","));
    expect(";");
  }

  // Reads `.align N .v4 .f32 .ptr .global .align 16`; returns the vector width.
  u32 declType(Variable *v) {
    u32 vec = 1, align = 0;
    bool ptr = false;
    while (peek().kind == Tok::Word && peek().text[0] == '.') {
      std::string w = word();
      if (w == ".align") {
        u32 n = u32(constant());
        if (!ptr) align = n;
      } else if (w == ".ptr") {
        ptr = true;
      } else if (w == ".v2" || w == ".v4" || w == ".v8") {
        vec = u32(w[2] - '0');
      } else if (Ty t = typeFromName(std::string_view(w).substr(1)); t != Ty::None) {
        v->type = t;
      } else if (Space s; !ptr || !spaceFromWord(w, &s)) {
        fail("unknown attribute '" + w + "'");
      }
    }
    v->align = align ? align : std::max(1u, u32(bits(v->type)) / 8) * vec;
    return vec;
  }

  void declArray(Variable *v, u32 vec) {
    u64 count = vec;
    bool open = false;
    while (accept("[")) {
      if (accept("]")) { open = true; continue; }
      count *= u64(constant());
      expect("]");
    }
    v->size = open ? 0 : count * std::max(1, bits(v->type) / 8);
  }

  void initialiser(Variable *v) {
    u32 esize = u32(bits(v->type)) / 8;
    int depth = 0;
    do {
      while (accept("{")) ++depth;
      Value x = expression(1);
      if (x.name) fail("addresses in initialisers are not supported");
      u64 raw = u64(x.i);
      if (v->type == Ty::F32 && x.kind != Tok::F32Bits) {
        float f = x.kind == Tok::Float ? float(x.f) : float(x.i);
        memcpy(&raw, &f, 4);
      } else if (v->type == Ty::F64 && x.kind != Tok::F64Bits) {
        double d = x.kind == Tok::Float ? x.f : double(x.i);
        memcpy(&raw, &d, 8);
      }
      const u8 *p = reinterpret_cast<const u8 *>(&raw);
      v->init.insert(v->init.end(), p, p + esize);
      while (depth && accept("}")) --depth;
    } while (accept(","));
    while (depth-- > 0) expect("}");
    v->size = std::max<u64>(v->size, v->init.size());
    v->init.resize(v->size);
  }

  void place(Variable *v, KernelAst *k) {
    auto put = [&](u32 *top) {
      *top = (*top + v->align - 1) / v->align * v->align;
      v->address = *top;
      *top += u32(v->size);
    };
    if (v->space == Space::Shared && !v->isExtern) put(k ? &k->staticShared : &mod_.staticShared);
    if (v->space == Space::Local && k) put(&k->localBytes);
    if (v->space == Space::Param && k) put(&k->paramBytes);
  }

  // ---- kernels ------------------------------------------------------------------------------
  void kernel() {
    auto k = std::make_unique<KernelAst>();
    k->loc = peek().loc;
    k->name = word();
    k->staticShared = mod_.staticShared;
    openScope();
    if (accept("(") && !accept(")")) {
      do param(k.get()); while (accept(","));
      expect(")");
    }
    while (!peek().is("{") && !peek().is(";")) kernelDirective(k.get());
    if (accept(";")) { closeScope(); return; }  // a prototype
    expect("{");
    uses_.clear();
    block(k.get());
    closeScope();
    resolveLabels(k.get());
    mod_.kernels.push_back(std::move(k));
  }

  void param(KernelAst *k) {
    Variable v;
    v.loc = peek().loc;
    v.space = Space::Param;
    expect(".param");
    u32 vec = declType(&v);
    v.name = word();
    declArray(&v, vec);
    place(&v, k);
    k->params.push_back(std::make_unique<Variable>(v));
    scopes_[scope_].vars[v.name] = k->params.back().get();
  }

  void kernelDirective(KernelAst *k) {
    std::string w = word();
    auto triple = [&](u32 *out) {
      out[0] = u32(constant());
      out[1] = accept(",") ? u32(constant()) : 1;
      out[2] = accept(",") ? u32(constant()) : 1;
    };
    if (w == ".maxntid") triple(k->maxntid);
    else if (w == ".reqntid") { triple(k->maxntid); k->reqntid = true; }
    else if (w == ".minnctapersm") k->minnctapersm = u32(constant());
    else if (w == ".maxnctapersm" || w == ".maxclusterrank") constant();
    else if (w == ".maxnreg") k->maxnreg = u32(constant());
    else if (w == ".reqnctapercluster") triple(k->cluster);
    else if (w == ".explicitcluster" || w == ".noreturn") return;
    else if (w == ".pragma") { take(); accept(";"); }
    else fail("unknown kernel directive '" + w + "'");
  }

  void openScope() {
    scopes_.push_back({scope_, {}, {}, {}});
    scope_ = int(scopes_.size()) - 1;
  }
  void closeScope() { scope_ = scopes_[scope_].parent; }

  void block(KernelAst *k) {
    openScope();
    while (!accept("}")) {
      if (peek().kind == Tok::End) fail("missing '}' at the end of " + k->name);
      if (accept("{")) block(k);
      else statement(k);
    }
    closeScope();
  }

  void statement(KernelAst *k) {
    if (accept(";")) return;
    const Token &t = peek();
    if (t.kind == Tok::Word && t.text[0] == '.') return bodyDirective(k);
    if (t.kind == Tok::Word && peek(1).is(":")) {
      std::string name = word();
      take();
      if (scopes_[scope_].labels.count(name)) fail("label '" + name + "' defined twice");
      scopes_[scope_].labels[name] = int(k->stmts.size());
      k->labelNames.resize(k->stmts.size() + 1);
      k->labelNames.back() = name;
      return;
    }
    Stmt s;
    s.loc = t.loc;
    if (accept("@")) {
      s.guardNegate = accept("!");
      std::string p = word();
      s.guard = findReg(p);
      if (s.guard < 0) failAt(s.loc, "unknown predicate '" + p + "'");
    }
    s.loc = peek().loc;
    s.op = word();
    while (peek().kind == Tok::Word && peek().text[0] == '.') s.op += word();
    splitOpcode(&s);
    if (!peek().is(";")) {
      do s.args.push_back(operand()); while (accept(","));
    }
    if (!accept(";")) failAt(s.loc, "expected ';' after '" + s.op + "' before '" +
                                        std::string(peek().text) + "'");
    for (size_t i = 0; i < s.args.size(); ++i)
      if (s.args[i].kind == Arg::Label)
        uses_.push_back({int(k->stmts.size()), int(i), scope_});
    k->stmts.push_back(std::move(s));
  }

  static void splitOpcode(Stmt *s) {
    size_t start = 0;
    for (size_t dot; (dot = s->op.find('.', start)) != std::string::npos; start = dot + 1)
      s->parts.push_back(s->op.substr(start, dot - start));
    s->parts.push_back(s->op.substr(start));
  }

  void bodyDirective(KernelAst *k) {
    std::string w(peek().text);
    if (w == ".reg") {
      take();
      Variable v;
      declType(&v);
      do declareReg(k, v.type); while (accept(","));
      expect(";");
    } else if (w == ".loc" || w == ".file") {
      take();
      skipLine();
    } else if (w == ".pragma" || w == ".branchtargets" || w == ".callprototype") {
      while (!accept(";")) take();
    } else {
      bool isExtern = accept(".extern");
      variable(isExtern, k->locals, k);
    }
  }

  void declareReg(KernelAst *k, Ty type) {
    Loc l = peek().loc;
    std::string name = word();
    auto add = [&](const std::string &n) {
      if (scopes_[scope_].regs.count(n)) failAt(l, "register '" + n + "' declared twice");
      scopes_[scope_].regs[n] = int(k->regs.size());
      k->regs.push_back({n, type});
    };
    if (accept("<")) {
      s64 n = primary().i;
      while (!peek().is(">")) {  // a constant expression that stops at '>'
        std::string op(take().text);
        n = apply(op, n, primary().i);
      }
      expect(">");
      for (s64 i = 0; i < n; ++i) add(name + std::to_string(i));
    } else {
      add(name);
    }
  }

  void resolveLabels(KernelAst *k) {
    k->labelNames.resize(k->stmts.size() + 1);
    for (const LabelUse &u : uses_) {
      Arg &a = k->stmts[u.stmt].args[u.arg];
      for (int s = u.scope; s >= 0 && a.label < 0; s = scopes_[s].parent)
        if (auto it = scopes_[s].labels.find(a.name); it != scopes_[s].labels.end())
          a.label = it->second;
      if (k->stmts[u.stmt].parts[0] == "call") continue;  // decode will refuse it, by name
      if (a.label < 0) failAt(k->stmts[u.stmt].loc, "unknown name '" + a.name + "'");
    }
  }

  Module &mod_;
  std::vector<Token> toks_;
  size_t pos_ = 0;
  std::vector<Scope> scopes_;
  int scope_ = 0;
  std::vector<LabelUse> uses_;
};

}  // namespace

std::unique_ptr<Module> parsePtx(std::string text) {
  auto m = std::make_unique<Module>();
  m->text = std::move(text);
  TokenStream ts = lex(m->text);
  Parser(*m, std::move(ts)).run();
  if (m->version.empty()) throw PtxError("no .version directive: not PTX text");
  return m;
}

}  // namespace emu
