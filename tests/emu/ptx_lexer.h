// ptx_lexer.h - PTX text to tokens. Honours cpp line markers: `# 12 "file.ptx"`.
#pragma once
#include "base.h"

namespace emu {

enum class Tok : u8 { End, Word, Int, Float, F32Bits, F64Bits, String, Punct };

struct Token {
  Tok kind = Tok::End;
  std::string_view text;  // points into the source text
  u64 ival = 0;           // Int, F32Bits, F64Bits
  double fval = 0;        // Float
  Loc loc;
  bool is(const char *s) const { return text == s; }
};

struct TokenStream {
  std::vector<std::string> files;  // index 0 is "<ptx>", used before the first line marker
  std::vector<Token> tokens;       // ends with one Tok::End
};

TokenStream lex(std::string_view text);

}  // namespace emu
