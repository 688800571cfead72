// What `python3 dev.py bundle` makes `paralleldit.js` of, the one script that ComfyUI serves and its editor loads.

import './convert.mjs'
import './errors.mjs'
import './panel.mjs'
import './plan.mjs'
import './waiting.mjs'
