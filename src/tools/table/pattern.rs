//! The patterns of LIKE and GLOB, with SQLite's rules: LIKE does not distinguish the case of ASCII
//! letters, GLOB does; a pattern and a text end at a NUL.

/// Longest pattern, bytes.
pub(super) const LONGEST: i32 = 1000;

pub(super) struct SqlPattern {
    parts: Vec<PatternPart>,
    ignores_case: bool,
}

enum PatternPart {
    /// Any characters: `%`, `*`.
    Many,
    /// One character: `_`, `?`.
    One,
    Letter(char),
    /// `[a-z]`, `[^a-z]`; both ends are included.
    Set {
        ranges: Vec<(char, char)>,
        inverted: bool,
    },
    /// A set that is never closed.
    Never,
}

/// The time of the query has ended.
#[derive(Debug)]
pub(super) struct Late;

/// Comparisons between two checks of the time.
const BETWEEN: u32 = 1 << 14;

impl SqlPattern {
    pub(super) fn like(pattern: &str, escape: Option<char>) -> Self {
        let mut parts = Vec::new();
        let mut letters = until_nul(pattern);
        while let Some(letter) = letters.next() {
            parts.push(match letter {
                // A pattern that ends with its escape matches nothing.
                _ if Some(letter) == escape => letters.next().map_or(PatternPart::Never, PatternPart::Letter),
                '%' => PatternPart::Many,
                '_' => PatternPart::One,
                letter => PatternPart::Letter(letter),
            });
        }
        Self { parts, ignores_case: true }
    }

    pub(super) fn glob(pattern: &str) -> Self {
        let mut parts = Vec::new();
        let mut letters = until_nul(pattern);
        while let Some(letter) = letters.next() {
            parts.push(match letter {
                '*' => PatternPart::Many,
                '?' => PatternPart::One,
                '[' => set(&mut letters),
                letter => PatternPart::Letter(letter),
            });
        }
        Self { parts, ignores_case: false }
    }

    /// Compares a text. `is_late` is called from time to time.
    pub(super) fn matches(&self, text: &str, is_late: impl Fn() -> bool) -> Result<bool, Late> {
        let text = text.split('\0').next().unwrap_or_default();
        let (mut rest, mut part) = (text, 0);
        // Where the last `%` is, and the text after what it has taken so far.
        let mut last: Option<(usize, &str)> = None;
        let mut compared = 0_u32;
        loop {
            compared += 1;
            if compared.is_multiple_of(BETWEEN) && is_late() {
                return Err(Late);
            }
            let next = rest.chars().next();
            match (self.parts.get(part), next) {
                (None, None) => return Ok(true),
                (Some(PatternPart::Many), _) => {
                    part += 1;
                    last = Some((part, rest));
                    continue;
                }
                (Some(next_part), Some(letter)) if self.takes(next_part, letter) => {
                    part += 1;
                    rest = &rest[letter.len_utf8()..];
                    continue;
                }
                _ => {}
            }
            let Some((after, taken)) = last else { return Ok(false) };
            let Some(letter) = taken.chars().next() else { return Ok(false) };
            let taken = &taken[letter.len_utf8()..];
            (part, rest, last) = (after, taken, Some((after, taken)));
        }
    }

    fn takes(&self, part: &PatternPart, letter: char) -> bool {
        match part {
            PatternPart::Many | PatternPart::Never => false,
            PatternPart::One => true,
            PatternPart::Letter(expected) if self.ignores_case => expected.eq_ignore_ascii_case(&letter),
            PatternPart::Letter(expected) => *expected == letter,
            PatternPart::Set { ranges, inverted } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&letter)) != *inverted
            }
        }
    }
}

fn until_nul(text: &str) -> std::iter::Peekable<impl Iterator<Item = char> + Clone> {
    text.chars().take_while(|letter| *letter != '\0').peekable()
}

/// The set after `[`.
fn set(letters: &mut std::iter::Peekable<impl Iterator<Item = char> + Clone>) -> PatternPart {
    let mut ranges = Vec::new();
    let inverted = letters.next_if_eq(&'^').is_some();
    // A bracket at the start is one of the letters.
    if letters.next_if_eq(&']').is_some() {
        ranges.push((']', ']'));
    }
    // The start of a range such as `a-z`.
    let mut before = None;
    while let Some(letter) = letters.next() {
        match (letter, before) {
            (']', _) => return PatternPart::Set { ranges, inverted },
            ('-', Some(first)) if letters.peek().is_some_and(|next| *next != ']') => {
                ranges.extend(letters.next().map(|last| (first, last)));
                before = None;
            }
            _ => {
                ranges.push((letter, letter));
                before = Some(letter);
            }
        }
    }
    PatternPart::Never
}
