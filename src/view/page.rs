//! The page: files that `just view` makes of `view/src`.

/// A file of the page: its name in the address, its media type, its bytes.
pub(super) struct PageFile {
    pub(super) name: &'static str,
    pub(super) media_type: &'static str,
    pub(super) bytes: &'static [u8],
}

pub(super) const INDEX: PageFile = PageFile {
    name: "index.html",
    media_type: "text/html; charset=utf-8",
    bytes: include_bytes!("../../view/dist/index.html"),
};

pub(super) const FILES: [PageFile; 2] = [
    PageFile {
        name: "app.js",
        media_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../view/dist/app.js"),
    },
    PageFile {
        name: "app.css",
        media_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../../view/dist/app.css"),
    },
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::{Path, PathBuf};

    use sha2::{Digest, Sha256};

    use super::*;

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// `just view` writes the checksum; without npm this is the only check of the bundle.
    #[test]
    fn the_page_is_made_from_its_sources() {
        let view = Path::new(env!("CARGO_MANIFEST_DIR")).join("view");
        let mut sum = Sha256::new();
        let sources = ["build.mjs", "package-lock.json", "tsconfig.json"].map(|name| view.join(name));
        for path in sources.into_iter().chain(files(&view.join("src"))) {
            let name = path.strip_prefix(&view).unwrap().to_str().unwrap().replace('\\', "/");
            let bytes = std::fs::read(&path).unwrap();
            sum.update(format!("{name}\0{}\0", bytes.len()));
            sum.update(bytes);
        }
        let written = std::fs::read_to_string(view.join("dist/sources.sha256")).unwrap();
        let sum = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        assert_eq!(written.trim(), sum, "view/dist is not made from view/src: run `just view`");
    }

    #[test]
    fn the_page_is_small_and_loads_nothing_from_elsewhere() {
        let size: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(size < 200_000, "the page has {size} bytes");
        let index = std::str::from_utf8(INDEX.bytes).unwrap();
        assert!(FILES.iter().all(|file| index.contains(file.name)));
        assert!(!index.contains("//") && !index.contains("style="), "{index}");
    }
}
