// A template's note is in the editor's language alone: it brings its translations as a property.

import { app } from '../../scripts/app.js'
import { getLanguage } from './text.mjs'

const TRANSLATED = 'paralleldit_translated'

app.registerExtension({
  name: 'ParallelDiT.Notes',

  afterConfigureGraph() {
    for (const node of app.rootGraph.nodes) {
      const known = node.properties?.[TRANSLATED]
      if (!known) continue
      const language = getLanguage()
      const { title, text } = known[language] ?? known[language.split('-')[0]] ?? {}
      if (text) {
        node.title = title
        node.widgets[0].value = text
      }
      delete node.properties[TRANSLATED] // from now on it is a note like any other
    }
  }
})
