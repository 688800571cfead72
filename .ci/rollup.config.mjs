// Makes one script of the editor's modules. It stays readable: nothing is shortened, comments are kept.
export default {
  input: 'web/main.mjs',
  external: (name) => /^[./]+\/scripts\/(api|app)\.js$/.test(name), // ComfyUI's own, where it serves them
  output: {
    format: 'es',
    banner: '// Made by `python3 dev.py bundle` of main.mjs and what it imports: change those, not this file.'
  }
}
