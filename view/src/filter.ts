// Filters of a static copy; the server's are in src/view/filter.rs.

type Cell = number | string | boolean | null;
type Eval = (column: (name: string) => Cell) => Cell;

const TOKEN = /\s*(==|~=|<=|>=|<|>|\(|\)|"[^"]*"|'[^']*'|-?[0-9][0-9.eE+-]*|[A-Za-z_][\w./]*)/y;

export function filter(text: string): Eval {
  const words: string[] = [];
  TOKEN.lastIndex = 0;
  const source = text.trim();
  while (TOKEN.lastIndex < source.length) {
    const match = TOKEN.exec(source);
    if (!match) throw new Error("The filter can't be read, as in: reward < 0 and steps > 3");
    words.push(match[1]!);
  }
  let at = 0;
  const isTrue = (cell: Cell) => cell !== null && cell !== false;
  const compare: Record<string, (a: Cell, b: Cell) => boolean> = {
    "==": (a, b) => a === b,
    "~=": (a, b) => a !== b,
    "<": (a, b) => same(a, b) && a! < b!,
    "<=": (a, b) => same(a, b) && a! <= b!,
    ">": (a, b) => same(a, b) && a! > b!,
    ">=": (a, b) => same(a, b) && a! >= b!,
  };
  const same = (a: Cell, b: Cell) => a !== null && typeof a === typeof b;
  const operand = (): Eval => {
    const word = words[at++];
    if (word === undefined) throw new Error("The filter ends too early");
    if (word === "not") {
      const inner = operand();
      return (column) => !isTrue(inner(column));
    }
    if (word === "(") {
      const inner = or();
      if (words[at++] !== ")") throw new Error("The filter has no `)`");
      return inner;
    }
    if (/^["']/.test(word)) return () => word.slice(1, -1);
    if (/^[-0-9]/.test(word)) return () => Number(word);
    if (word === "nil") return () => null;
    if (word === "true" || word === "false") return () => word === "true";
    return (column) => column(word);
  };
  const comparison = (): Eval => {
    const left = operand();
    const operator = compare[words[at] ?? ""];
    if (!operator) return left;
    at += 1;
    const right = operand();
    return (column) => operator(left(column), right(column));
  };
  const and = (): Eval => {
    let left = comparison();
    while (words[at] === "and") {
      at += 1;
      const [a, b] = [left, comparison()];
      left = (column) => (isTrue(a(column)) ? b(column) : a(column));
    }
    return left;
  };
  const or = (): Eval => {
    let left = and();
    while (words[at] === "or") {
      at += 1;
      const [a, b] = [left, and()];
      left = (column) => (isTrue(a(column)) ? a(column) : b(column));
    }
    return left;
  };
  const all = or();
  if (at < words.length) throw new Error(`The filter has \`${words[at]}\` instead of an operator such as \`and\``);
  return all;
}
