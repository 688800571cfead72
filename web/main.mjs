// `python3 dev.py bundle` makes `paralleldit.js` of this file. ComfyUI serves that one script, and its editor loads it.

import './convert.mjs'
import './errors.mjs'
import './former.mjs'
import './notes.mjs'
import './panel.mjs'
import './plan.mjs'
import './settings.mjs'
import './waiting.mjs'
